/* Retention (K-1 to K-15): a collector of the job with incarnation `me`, or by hand, without one. */

#define BY_HAND (INCS + 1)

#define LATER_COMMIT(g, h) ((h) > (g) && (h) < GENS && READABLE(h))
#define DISPLACED(g) (LATER_COMMIT(g, 1) || LATER_COMMIT(g, 2) || LATER_COMMIT(g, 3))
#define NEWEST_BASE_IS(g) (obj[BASE(NEWEST_BASE)] == AT(g))
/* What a commit, or a retired generation whose data is kept, names as a source. */
#ifdef KEPT_BASE_LOSES_SOURCES
#define NAMED(g) ((g) == SOURCE && REFERRING < GENS && READABLE(REFERRING))
#else
#define NAMED(g) ((g) == SOURCE && REFERRING < GENS \
	&& (READABLE(REFERRING) || NEWEST_BASE_IS(REFERRING) || obj[PIN(REFERRING)] != ABSENT))
#endif

/* K-2, K-5: what a policy may retire, as one look tells. By the time of the put it may be wrong; so K-7. */
#define EXPENDABLE(g) (READABLE(g) && DISPLACED(g) && !NEWEST_BASE_IS(g) && obj[PIN(g)] == ABSENT && !NAMED(g))
/* K-10, K-11. */
#define LEFT_BEHIND(g) (HAS_OBJECTS(g) && obj[LEDGER(g)] == ABSENT && INC(g) < (me == BY_HAND -> GREATEST_CLAIM : me))
/* K-9, K-12: also what came back. */
#define GARBAGE(g) (HAS_OBJECTS(g) && (obj[LEDGER(g)] == ABORT || COMMITTED(g) && obj[RETIRED(g)] != ABSENT))

#define RETIRE 1
#define SETTLE 2
#define DELETE 3
#define TASKS_OF(i) \
	:: atomic { task == 0 && EXPENDABLE(i) -> g = i; task = RETIRE } \
	:: atomic { task == 0 && LEFT_BEHIND(i) -> g = i; task = SETTLE; m = (me == BY_HAND -> GREATEST_CLAIM : me) } \
	:: atomic { task == 0 && GARBAGE(i) -> g = i; task = DELETE; SYNC_READ(LEDGER(i)); SYNC_READ(RETIRED(i)) }

/*
 * K-7: whether the data is needed, read after the retired record is stored. `keep` is the answer. A claim that is newer than
 * the newest base belongs to an opening that may have chosen the generation before it was retired. The first receipt of an
 * undecided generation may name it as a source; its proof (P-35.9) came after that receipt.
 */
inline look_again(g)
{
#ifndef OPENINGS_UNSEEN
	m = GREATEST_CLAIM;
	keep = (m > 1 && obj[BASE(m)] == ABSENT);
#endif
	newest_base(INCS + 1);
	keep = keep || (b == AT(g));
	m = 0; b = 0;
#ifndef PINS_UNSEEN
	keep = keep || (obj[PIN(g)] != ABSENT);
#endif
#ifndef UNDECIDED_UNSEEN
	keep = keep || (g == SOURCE && REFERRING < GENS && obj[RECEIPT(REFERRING, 0)] != ABSENT && obj[LEDGER(REFERRING)] == ABSENT);
#endif
	keep = keep || NAMED(g)
}

/* K-8. */
inline delete_all(g)
{
	r = 0;
	do
	:: r < WRITERS -> atomic { obj[DATA(g, r)] = ABSENT; check_all(); r++ }
	:: else -> break
	od;
	atomic {
		r = 0;
		obj[RECEIPT(g, 0)] = ABSENT; obj[RECEIPT(g, 1)] = ABSENT; obj[INDEX(g)] = ABSENT; obj[LAYOUT(g)] = ABSENT;
#ifdef NODES
		obj[STAGED(g, 0)] = ABSENT; obj[STAGED(g, 1)] = ABSENT; /* N-11 */
#endif
		check_all() }
}

/* K-10: the abort first, and fenced; by hand, by the newest claim that was seen. */
inline abort_left_behind(g)
{
	fence(m);
	m = 0;
	if
	:: outcome == DECIDED ->
#ifdef EAGER_COLLECTOR
		CHECK(P11_complete_is_rolled_forward, obj[LEDGER(g)] != ABSENT || !DATA_THERE(g) || NEWEST_BASE > INC(g));
#endif
		put_decision(g, ABORT, x);
		keep = (x != ABORT); x = 0
	:: else -> keep = 1
	fi;
	x = 0; outcome = 0
}

proctype Collector(byte me)
{
	byte g, x, r, b, m, task, outcome; bit keep, is_new;
#ifdef POWER
	byte born;
	born = boots;
#endif
end_start: {
end_idle:
	do
	TASKS_OF(0)
#if GEN_INCS * SAVES > 1
	TASKS_OF(1)
#endif
#if GEN_INCS * SAVES > 2
	TASKS_OF(2)
#endif
	:: task == RETIRE ->
		put_if_absent(RETIRED(g), 1, x);              /* K-6 */
		x = 0; g = 0; task = 0
	:: task == SETTLE ->
#ifdef DELETE_FIRST
		delete_all(g);
#endif
		abort_left_behind(g);
		atomic { task = (keep -> 0 : DELETE); g = (keep -> 0 : g); keep = 0 }
	:: task == DELETE ->
		if
		:: obj[LEDGER(g)] == ABORT                    /* K-9 */
#ifndef NO_LOOK_AGAIN
		:: obj[LEDGER(g)] != ABORT -> look_again(g)
#else
		:: else
#endif
		fi;
		if
		:: keep
		:: else -> delete_all(g)
		fi;
#ifdef DELETED_TOMBSTONES
		obj[LEDGER(g)] = (obj[LEDGER(g)] == ABORT -> ABSENT : obj[LEDGER(g)]);
#endif
		atomic { keep = 0; g = 0; task = 0 }
	od
	} UNTIL_POWER_LOSS
}

/* K-15: somebody pins a generation, and is told whether it came in time. */
proctype Pinner(byte g)
{
	byte me, x; bit is_new;
end:	READABLE(g);
	put_if_absent(PIN(g), 1, x);
	atomic { pinned = (obj[RETIRED(g)] == ABSENT -> pinned | BIT(g) : pinned); check_all() };
	x = 0
}
