/* P-58: whoever has no incarnation finishes what is complete. */

#ifdef ANYBODY_TAKES_OLDER
#define MAY_BE_FINISHED(g) (HAS_OBJECTS(g) && obj[LEDGER(g)] == ABSENT)
#else
#define MAY_BE_FINISHED(g) (HAS_OBJECTS(g) && obj[LEDGER(g)] == ABSENT && INC(g) == me && obj[BASE(me)] != ABSENT)
#endif

/* `me` is the number by which it fences: that of the newest claim, and so of the generation. */
proctype Anybody()
{
	COORDINATOR;
	me = GREATEST_CLAIM;                                  /* it may be newer when the generation is looked for */
end:	if
	:: MAY_BE_FINISHED(0) -> g = 0
#if GEN_INCS * SAVES > 1
	:: MAY_BE_FINISHED(1) -> g = 1
#endif
	fi;
	gather(g, false);
	if
	:: verdict == PROVEN -> prove(g)
	:: else
	fi;
	mine = (verdict == PROVEN -> MANIFEST(writer[1]) : ABORT);
#ifdef ANYBODY_ABORTS
	if
	:: verdict != UNDETERMINED ->
#else
	if
	:: verdict == PROVEN ->
#endif
#ifndef ANYBODY_UNFENCED
		fence(me);
#endif
		if
		:: outcome == DECIDED -> decide(g)
		:: else
		fi
	:: else                                               /* it is left as it is */
	fi;
	forget();
	atomic { g = 0; me = 0; outcome = 0 }
}
