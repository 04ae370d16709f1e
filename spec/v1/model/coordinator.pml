/* Deciding (P-34 to P-41): the coordinator of a live save, and the parts that a settle shares with it. */

/* Verdicts of a proof (P-12, P-13). */
#define PROVEN 0
#define REFUTED 1
#define UNDETERMINED 2
/* How it ended. */
#define DECIDED 0
#define SUPERSEDED 1
#define UNKNOWN 2

/* What every coordinator knows; `gap`: it has seen what proves that the generation is incomplete (for P-12 alone). */
#ifdef POWER
#define COORDINATOR byte me, g, x, r, writer[RANKS], verdict, mine, outcome, born; bit gap, is_new
#else
#define COORDINATOR byte me, g, x, r, writer[RANKS], verdict, mine, outcome; bit gap, is_new
#endif

inline forget()
{
	atomic { x = 0; r = 0; writer[0] = 0; writer[1] = 0; verdict = 0; mine = 0; gap = 0; is_new = 0 }
}

/* A read whose answer may be a proof of incompleteness. */
inline look(key)
{
	atomic { get(key, x); gap = gap || (obj[key] == ABSENT) }
#ifdef ABORT_ON_TRANSIENT
	;
	if
	:: x == ERROR -> x = ABSENT
	:: else
	fi
#endif
}

/* P-35.1: the receipt of every rank. A live save waits for it until the deadline (P-34), a settle does not. */
inline gather(g, live)
{
	r = 0;
	do
	:: r < RANKS && verdict == PROVEN ->
#ifdef STAGED_IS_ENOUGH
		look(STAGED(g, r));
#else
		look(RECEIPT(g, r));
#endif
		SYNC_READ(RECEIPT(g, r));
		if
		:: x == ERROR && live                          /* asks again; at the deadline it does not know */
		:: x == ERROR && (!live || TROUBLE) -> verdict = UNDETERMINED
		:: x == ABSENT && live ->
			if
			:: obj[RECEIPT(g, r)] != ABSENT
#ifndef NO_DEADLINE
			:: atomic { verdict = REFUTED; TOO_LATE } /* the deadline */
#endif
			fi
		:: x == ABSENT && !live -> verdict = REFUTED
#ifdef IGNORES_FAILED
		:: x == FAILED && live -> false                /* it waits for ever */
		:: x == FAILED && !live -> gap = 1; verdict = REFUTED
#else
		:: x == FAILED -> gap = 1; verdict = REFUTED
#endif
		:: x != ERROR && x >= COMPLETE(0) -> writer[r] = WRITER(x); r++
		fi
	:: else -> break
	od
}

/* P-35.8 and P-35.9: every file is there; no source is retired. Then P-36: the derived objects. */
inline prove(g)
{
#ifndef STAGED_IS_ENOUGH
	r = 0;
#endif
	do
	:: r < RANKS && verdict == PROVEN ->
		look(DATA(g, DATABASE(writer[r])));
		verdict = (x == ERROR -> UNDETERMINED : (x == ABSENT -> REFUTED : PROVEN));
		r++
	:: else -> break
	od;
	if
	:: g == REFERRING && verdict == PROVEN ->
		atomic { get(RETIRED(SOURCE), x); gap = gap || (obj[RETIRED(SOURCE)] != ABSENT) };
		verdict = (x == ERROR -> UNDETERMINED : (x != ABSENT -> REFUTED : PROVEN))
	:: else
	fi;
	if
	:: verdict == PROVEN ->
#ifdef OVERWRITTEN_INDEX
		atomic { obj[INDEX(g)] = TORN_INDEX; check_all() };
		obj[INDEX(g)] = WHOLE_INDEX
#else
		put_if_absent(INDEX(g), WHOLE_INDEX, x)
#endif
	:: else
	fi
}

/* P-38, of a process whose number is `n`. */
inline fence(n)
{
	get(CLAIM(n + 1), x);
	outcome = (x == ERROR -> UNKNOWN : (x != ABSENT -> SUPERSEDED : DECIDED))
}

/* P-39, P-40: puts `mine`; x is what is stored. */
inline decide(g)
{
	if
	:: mine == ABORT ->
		CHECK(P12_abort_needs_a_proof, gap);
#ifdef ANYBODY
		CHECK(P58_abort_is_for_the_job_or_a_newer_one, obj[LEDGER(g)] != ABSENT || deadline || ANY_FAILED(g)
			|| obj[CLAIM(INC(g) + 1)] != ABSENT)
#endif
	:: else
	fi;
	put_decision(g, mine, x);
	CHECK(P40_two_manifests_differ, !IS_MANIFEST(x) || !IS_MANIFEST(mine) || x == mine)
}

/* The whole of it, for one generation; `outcome` says how it ended, and x what is stored. */
inline conclude(g, live)
{
#ifdef EARLY_FENCE
	fence(me);
#endif
#ifdef MANIFEST_FIRST
	writer[1] = 1;
#else
	gather(g, live);
	if
	:: verdict == PROVEN -> prove(g)
	:: else
	fi;
#endif
	if
	:: verdict == UNDETERMINED -> outcome = UNKNOWN
	:: else ->
#ifdef NO_FENCE
		outcome = DECIDED;
#elif !defined(EARLY_FENCE)
		fence(me);
#endif
#ifdef SIGNED_MANIFEST
		mine = (verdict == PROVEN -> MANIFEST(writer[1] + me) : ABORT);
#else
		mine = (verdict == PROVEN -> MANIFEST(writer[1]) : ABORT);
#endif
#ifdef FENCED_ABORT
		mine = (outcome == SUPERSEDED -> ABORT : mine);
		outcome = (outcome == SUPERSEDED -> DECIDED : outcome);
#endif
		if
		:: outcome == DECIDED -> decide(g)
		:: else
		fi
	fi
}

#ifdef NODES
/* N-4: rank 0 has seen that all is whole on the nodes; or a rank failed, or is late. */
inline record(g)
{
	if
	:: obj[STAGED(g, 0)] != ABSENT && obj[STAGED(g, 1)] != ABSENT -> put_if_absent(ON_NODES(g), 1, x); x = 0
	:: true
	fi
}
#endif

/* Rank 0 of a live save tells its caller what is stored. */
inline report(g)
{
	atomic {
		if
		:: IS_MANIFEST(x) -> acknowledged = acknowledged | BIT(g)
		:: else -> told_failed = told_failed | BIT(g)
		fi;
		check_all() }
}

proctype Coordinator(byte n)
{
	COORDINATOR;
#ifdef POWER
	born = boots;
#endif
	{
	me = n;
	g = GEN(n, 0) + (n == 1 -> HISTORY : 0);
	do
	:: g < GEN(n + 1, 0) ->
#ifdef NODES
		record(g);
#endif
		conclude(g, true);
		if
		:: outcome == DECIDED -> report(g)
		:: outcome == UNKNOWN -> GAVE_UP               /* P-41: the next save may begin */
		:: outcome == SUPERSEDED -> break              /* P-9 */
		fi;
		forget();
		outcome = 0;
		g++
	:: else -> break
	od;
	forget()
	} UNTIL_DEATH
}
