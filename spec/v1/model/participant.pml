/* A rank of incarnation `me` that saves (P-29 to P-33). `w` is the process: two may believe that they are rank 1. */

/* P-42: what the ledger tells; at the deadline, or when superseded without a decision, nothing is known. */
inline wait_for_outcome(g, receipt)
{
	if
	:: atomic { obj[LEDGER(g)] != ABSENT -> x = obj[LEDGER(g)]; SYNC_READ(LEDGER(g)) };
	   atomic {
		if
		:: IS_MANIFEST(x) ->
			CHECK(P32_told_complete_means_taken, obj[RECEIPT(g, RANK(w))] == receipt);
			acknowledged = acknowledged | BIT(g)
		:: else -> told_failed = told_failed | BIT(g)
		fi;
		check_all() }
	:: true
	fi
}

proctype Rank(byte me; byte w)
{
	byte g, x; bit is_new;
#ifdef POWER
	byte born;
	born = boots;
#endif
	{
	g = GEN(me, 0) + (me == 1 -> HISTORY : 0);
	do
	:: g < GEN(me + 1, 0) ->
		if
		:: obj[CLAIM(me + 1)] == ABSENT               /* P-31.1 */
		:: else -> break
		fi;
		obj[LAYOUT(g)] = 1;                           /* P-31.4: by put-if-absent, equal for all ranks */
		if
		:: true -> goto failed                        /* P-32 */
#ifdef LIVENESS
		:: true -> goto done                          /* it dies */
#endif
		:: true
		fi;
#ifdef EARLY_RECEIPT
		put_if_absent(RECEIPT(g, RANK(w)), COMPLETE(w), x);
#endif
		atomic {                                      /* P-31.4: into a database of its own (L-15) */
#ifdef LATE_CAPTURE
			obj[DATA(g, DATABASE(w))] = CAPTURED_LATE;
#else
			obj[DATA(g, DATABASE(w))] = CAPTURED_BY(w);
#endif
			MADE_VISIBLE(DATA(g, DATABASE(w)));
			check_all() };
		SYNC(DATA(g, DATABASE(w)));                   /* P-31.5 */
#ifndef EARLY_RECEIPT
		put_if_absent(RECEIPT(g, RANK(w)), COMPLETE(w), x); /* P-31.6 */
#endif
		if
#ifdef DUPLICATE_UNNOTICED
		:: true
#else
		:: x == COMPLETE(w)
		:: else -> break                              /* P-32: a duplicate rank, which failed */
#endif
		fi;
		wait_for_outcome(g, COMPLETE(w));
		x = 0; g++
	:: else -> break
	od;
	goto done;
failed:	put_if_absent(RECEIPT(g, RANK(w)), FAILED, x);
done:	x = 0; g = 0; is_new = 0
	} UNTIL_POWER_LOSS
}

/* A rank whose delivery is one step: for configurations in which another one's steps are enough. */
proctype AtOnce(byte me; byte w)
{
	byte g = GEN(me, 0) + HISTORY;
	if
	:: obj[CLAIM(me + 1)] == ABSENT ->
		atomic {
			obj[LAYOUT(g)] = 1;
			obj[DATA(g, w)] = CAPTURED_BY(w);
			SYNC(DATA(g, w));
			obj[RECEIPT(g, w)] = COMPLETE(w);
			SYNC(RECEIPT(g, w));
			g = 0 }
	:: else
	fi
}
