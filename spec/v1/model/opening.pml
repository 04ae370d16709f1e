/* Opening for writing (P-8 to P-24): claim, settle, base, hand-over. A rollback by hand is an opening with a base that was named. */

#if INCS > 3
#define GREATEST_CLAIM (obj[CLAIM(4)] -> 4 : (obj[CLAIM(3)] -> 3 : (obj[CLAIM(2)] -> 2 : 1)))
#elif INCS > 2
#define GREATEST_CLAIM (obj[CLAIM(3)] -> 3 : (obj[CLAIM(2)] -> 2 : 1))
#else
#define GREATEST_CLAIM (obj[CLAIM(2)] -> 2 : 1)
#endif

/* P-8. The list is one step; every claim that is there is in it. */
inline claim(job)
{
	me = GREATEST_CLAIM;
	do
#ifdef GAP_IN_CLAIMS
	:: me < INCS -> me = (me + 2 <= INCS -> me + 2 : me + 1);
#else
	:: me < INCS -> me++;
#endif
		put_if_absent(CLAIM(me), job, x);
		if
		:: x == job -> break
		:: else
		fi
	:: else -> me = 0; break
	od
}

/* P-10 to P-14: every generation of older incarnations that has objects and no decision, oldest first. */
inline settle()
{
	g = 0;
	do
	:: g < GENS && INC(g) < me && outcome == DECIDED ->
		if
		:: HAS_OBJECTS(g) && obj[LEDGER(g)] == ABSENT -> conclude(g, false); forget()
#ifdef STALE_LIST
		:: HAS_OBJECTS(g) && obj[LEDGER(g)] == ABSENT
#endif
		:: else
		fi;
		g++
	:: else -> break
	od
}

/* The greatest incarnation below `end` that has a base, and the base: one read each, in ascending order. */
inline newest_base(end)
{
	m = 1; r = 1;
	do
	:: r < end -> atomic { m = (obj[BASE(r)] != ABSENT -> r : m); SYNC_READ(BASE(r)); r++ }
	:: else -> break
	od;
	b = obj[BASE(m)]; r = 0
}

/* P-20, P-21: of that incarnation the newest usable commit, else its base. (What the parents lead to is not modelled.) */
inline find_head()
{
	newest_base(me);
#ifdef HEAD_BY_STEP
	m = GEN_INCS;
#endif
	g = GEN(m + 1, 0);
	do
	:: m <= GEN_INCS && g > GEN(m, 0) ->
		g--;
		atomic { x = obj[LEDGER(g)]; SYNC_READ(LEDGER(g)) };
		if
		:: IS_MANIFEST(x) && obj[RETIRED(g)] == ABSENT -> b = AT(g); break
#ifdef BASE_ON_NODES
		:: obj[ON_NODES(g)] != ABSENT -> b = AT(g); break
#endif
		:: else
		fi
	:: else -> break
	od;
	m = 0; x = 0
}

/* P-15, P-16: check the choice, record it. With K-7 as in collector.pml nothing more is needed. */
inline start_from(b)
{
	if
	:: b == FRESH
	:: b != FRESH ->
		g = GENERATION(b);
		if
		:: by_hand && !READABLE(g) -> goto stopped    /* K-6 */
#ifdef BASE_ON_NODES
		:: !WHOLE(g) && !(HELD(g, 0) && HELD(g, 1)) -> goto stopped
#else
		:: !WHOLE(g) || !SOURCES_THERE(g) -> goto stopped
#endif
		:: else
		fi
	fi;
#ifdef FENCE_BEFORE_BASE
	fence(me);
	if
	:: outcome != DECIDED -> goto stopped
	:: else
	fi;
#endif
	put_if_absent(BASE(me), b, x);
#ifdef NODES
	CHECK(N8_nothing_rests_on_nodes_only, b == FRESH || COMMITTED(GENERATION(b)));
#endif
#ifdef RECHECK
	if
	:: b != FRESH && obj[RETIRED(GENERATION(b))] != ABSENT -> /* unless it was the base that K-7 kept until now */
		g = GENERATION(b);
		newest_base(me);
		if
		:: b == AT(g)
		:: else -> goto stopped
		fi
	:: else
	fi
#endif
}

/* P-19: the ranks begin. */
inline hand_over(n)
{
	if
	:: n <= GEN_INCS -> run AtOnce(n, 0); run AtOnce(n, 1); run Coordinator(n)
	:: else
	fi;
#ifdef JOB_COLLECTS
	run Collector(n)
#endif
}

proctype Opener(byte job; byte by_hand)
{
	COORDINATOR;
	byte b, m;
#ifdef POWER
	born = boots;
#endif
	{
#ifdef LIVENESS
	!trouble; /* the last start: earlier ones may have ended by P-13 */
#endif
#if defined(NODES) && defined(JOB_DIES)
	killed; /* the next start */
#endif
#if defined(NODES) && !defined(FINISHED_AFTER_THE_SETTLE) && !defined(FINISHES_NOTHING)
	finish();
#endif
	claim(job);
	if
	:: me == 0 -> goto stopped
	:: else
	fi;
#ifndef SETTLES_NOTHING
	settle();
#endif
#ifdef FINISHED_AFTER_THE_SETTLE
	finish();
#endif
	if
	:: outcome != DECIDED -> goto stopped                 /* P-13, P-9 */
	:: else
	fi;
	if
	:: by_hand -> b = by_hand                             /* P-23 */
	:: else -> find_head()
	fi;
	start_from(b);
	atomic { /* the start counts from the fence on */
#if !defined(NO_FENCE_AFTER_BASE) && !defined(FENCE_BEFORE_BASE)
		fence(me);
#endif
		if
		:: outcome == DECIDED -> observe_start(me, b, by_hand); hand_over(me)
		:: else
		fi };
stopped:
	forget();
	atomic { g = 0; b = 0; m = 0; outcome = 0; me = 0 }
	} UNTIL_POWER_LOSS
}

/* An opening whose process dies right after its claim (P-18). */
proctype DeadOpener(byte job)
{
	byte me, x; bit is_new;
	claim(job);
#ifdef DELETED_CLAIMS
	obj[CLAIM(me)] = ABSENT; /* by whoever tidies up, or a rule of the bucket (S-28) */
#endif
	me = 0; x = 0
}
