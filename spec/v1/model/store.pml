/*
 * The store of chapter 2. One array element is one object; every operation is one step of its caller.
 *
 * put-if-absent may be applied though its answer is lost, may be applied later, or not at all (S-5): the caller repeats it
 * until the store answers, and the answer is what is stored (S-4).
 */

/* Generations count from 0 in the order of L-8; incarnations and saves are in the number. */
#define GENS (GEN_INCS * SAVES)
#define GEN(n, s) (((n) - 1) * SAVES + (s))
#define INC(g) ((g) / SAVES + 1)

/* Keys of chapter 3. */
#define LEDGER(g) (g)
#define RETIRED(g) (GENS + (g))
#define LAYOUT(g) (2 * GENS + (g))
#define INDEX(g) (3 * GENS + (g))
#define PIN(g) (4 * GENS + (g))
#define RECEIPT(g, r) (5 * GENS + (g) * RANKS + (r))
#define DATA(g, w) ((5 + RANKS) * GENS + (g) * WRITERS + (w))
#define CLAIM(n) ((5 + RANKS + WRITERS) * GENS + (n) - 1)
#define BASE(n) (CLAIM(INCS + 2) + (n) - 1)
#ifdef NODES
#define STAGED(g, r) (BASE(INCS + 1) + (g) * RANKS + (r))
#define ON_NODES(g) (BASE(INCS + 1) + GENS * RANKS + (g))
#define KEYS (BASE(INCS + 1) + GENS * (RANKS + 1))
#else
#define KEYS BASE(INCS + 1)
#endif

/* Contents. */
#define ABSENT 0
#define ABORT 1
#define MANIFEST(w) (1 + (w))    /* of the receipt of rank 1 by writer w: what two coordinators derive alike (P-37) */
#define IS_MANIFEST(x) ((x) > ABORT && (x) < UNANSWERED)
#define FAILED 1
#define COMPLETE(w) (2 + (w))    /* the receipt of writer w */
#define WRITER(x) ((x) - 2)
#define CAPTURED_BY(w) (1 + (w)) /* data that writer w captured at the step of the generation */
#define CAPTURED_LATE 100        /* … that was captured after training went on */
#define ROTTEN 101               /* … that is not what was written any more */
#define WHOLE_INDEX 1
#define TORN_INDEX 2
#define FRESH 1                  /* a base: none */
#define AT(g) (2 + (g))          /* a base: this generation */
#define GENERATION(b) ((b) - 2)
/* Answers that are no contents. */
#define OTHERS 254               /* "it exists", not read back: only in the variant NO_READ_BACK */
#define UNANSWERED 253
#define ERROR 255

byte obj[KEYS];

/* The rank that a writer writes as: the one writer too many is a second rank 1. */
#define RANK(w) ((w) - ((w) >= RANKS))
#ifdef SHARED_DATABASE
#define DATABASE(w) RANK(w)
#else
#define DATABASE(w) (w)
#endif

/* Whether anything is stored under generations/<g>/: what a list tells (S-7, P-10). */
#define HAS_OBJECTS(g) (obj[LAYOUT(g)] != ABSENT || obj[INDEX(g)] != ABSENT || obj[RECEIPT(g, 0)] != ABSENT \
	|| obj[RECEIPT(g, 1)] != ABSENT || obj[DATA(g, 0)] != ABSENT || obj[DATA(g, 1)] != ABSENT \
	|| obj[DATA(g, WRITERS - 1)] != ABSENT)

/* Faults: a budget, or as long as the trouble lasts. */
#ifdef LIVENESS
bit trouble = 1;
#define CAN_FAIL (trouble)
#define COUNT_FAULT skip
#define TROUBLE trouble
#else
byte faults;
#define CAN_FAIL (faults < FAULTS)
#define COUNT_FAULT faults++
#define TROUBLE true
#endif

/* The request that is under way though its sender has given up on the answer. */
byte flight_key = KEYS, flight_value, flight_by;

/* What survives a loss of power: with POWER, visible is not yet durable (S-12). */
#ifdef POWER
bit durable[KEYS];
byte boots;
#define MADE_VISIBLE(key) durable[key] = 0
#define SYNC(key) durable[key] = (obj[key] != ABSENT)
#define UNTIL_POWER_LOSS unless { boots != born }
#else
#define MADE_VISIBLE(key)
#define SYNC(key) skip
#define UNTIL_POWER_LOSS
#endif

inline make_durable()
{
#ifdef POWER
	do
	:: key < KEYS -> SYNC(key); key++
	:: else -> break
	od
#else
	skip
#endif
}

/* S-1: creates the object, or changes nothing. */
inline create(key, value)
{
#ifdef OVERWRITE
	obj[key] = value;
	MADE_VISIBLE(key)
#else
	if
	:: obj[key] == ABSENT -> obj[key] = value; MADE_VISIBLE(key)
	:: else
	fi
#endif
}

/* What the caller is told: what is stored (S-4). */
#ifdef NO_READ_BACK
#define ANSWER(key, value) (is_new -> value : OTHERS)
#else
#define ANSWER(key, value) obj[key]
#endif

/* S-2, S-13: before the caller is told, it is durable, whoever put it. */
#ifdef NO_SYNC_BY_LOSER
#define SYNC_ANSWER(key) durable[key] = durable[key] || is_new
#else
#define SYNC_ANSWER(key) SYNC(key)
#endif

/*
 * S-4, S-5, P-39: the same put until the store answers; `found` is what is stored. An answer may be lost after the request was
 * applied; or the request is under way when the caller gives up, and is applied later, or never (faults.pml).
 */
inline put_if_absent(key, value, found)
{
	found = UNANSWERED;
	do
	:: atomic { found == UNANSWERED ->
		is_new = (obj[key] == ABSENT);
		create(key, value);
		if
		:: found = ANSWER(key, value)
		:: CAN_FAIL -> COUNT_FAULT
		fi }
	:: atomic { found == UNANSWERED && CAN_FAIL && flight_key == KEYS ->
		COUNT_FAULT; flight_key = key; flight_value = value; flight_by = me }
	:: found != UNANSWERED -> SYNC_ANSWER(key); is_new = 0; break
#ifdef ONE_READ
	:: found == UNANSWERED && faults -> found = obj[key]; break
#endif
	od
}

/* The same for a decision, which the invariants watch. */
inline put_decision(g, value, found)
{
	found = UNANSWERED;
	do
	:: atomic { found == UNANSWERED ->
		is_new = (obj[LEDGER(g)] == ABSENT);
		create(LEDGER(g), value);
		observe_decision(g, value, me, is_new);
		if
		:: found = ANSWER(LEDGER(g), value)
		:: CAN_FAIL -> COUNT_FAULT
		fi }
	:: atomic { found == UNANSWERED && CAN_FAIL && flight_key == KEYS ->
		COUNT_FAULT; flight_key = LEDGER(g); flight_value = value; flight_by = me }
#ifdef UNFLUSHED_DECISION
	:: found != UNANSWERED -> is_new = 0; break
#else
	:: found != UNANSWERED -> SYNC_ANSWER(LEDGER(g)); is_new = 0; break
#endif
#ifdef ONE_READ
	:: found == UNANSWERED && faults -> found = obj[LEDGER(g)]; break
#endif
	od
}

/* S-6: the contents, or that there is none, or an error, which is neither. */
inline get(key, found)
{
	if
	:: found = obj[key]
	:: atomic { CAN_FAIL -> COUNT_FAULT; found = ERROR }
	fi
}

/* A record that somebody else put, and that is acted upon: it is made durable first. */
#ifdef NO_SYNC_BY_READER
#define SYNC_READ(key) skip
#else
#define SYNC_READ(key) SYNC(key)
#endif
