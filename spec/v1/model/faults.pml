/* What the world does: requests that arrive late, a loss of power, the end of all trouble. Crashes: see the README. */

/* The put that was under way is applied after all, or never. */
proctype Network()
{
	bit is_new;
end:	do
	:: atomic { flight_key != KEYS ->
		if
		:: is_new = (obj[flight_key] == ABSENT);
		   create(flight_key, flight_value);
		   if
		   :: flight_key < GENS -> observe_decision(flight_key, flight_value, flight_by, is_new)
		   :: else
		   fi
		:: true
		fi;
		flight_key = KEYS; flight_value = 0; flight_by = 0; is_new = 0 }
	od
}

#ifdef POWER
/* The machine loses its page cache: of what was not made durable anything may be gone. All processes end. */
proctype Power()
{
	byte key;
	atomic {
		boots++;
		do
		:: key < KEYS ->
			if
			:: obj[key] != ABSENT && !durable[key] ->
				if
				:: obj[key] = ABSENT
				:: durable[key] = 1
				fi
			:: else
			fi;
			key++
		:: else -> break
		od;
		key = 0;
		do /* a decision that nobody was told of may be gone */
		:: key < GENS ->
			first[key] = obj[LEDGER(key)];
			line = (line == AT(key) && !COMMITTED(key) -> obj[BASE(line_of)] : line);
			key++
		:: else -> break
		od;
		key = 0;
		check_all();
#ifndef NO_REBOOT
		run Opener(9, 0)
#endif
	}
}
#endif

#if defined(LIVENESS) || defined(DEATH)
#define JOB_DIES
#endif

#ifdef LIVENESS
/* Faults stop (P-55). Fairness sees to it that this happens. */
proctype Calm() { trouble = 0 }

/* Kills the coordinator of the live save, at any of its steps, or does not. */
bit killed, gave_up;
proctype Killer()
{
	if
	:: atomic { killed = 1; PROMISE }
	:: true
	fi
}
#define UNTIL_DEATH unless { killed }
#define GAVE_UP gave_up = 1
#define DECIDED_AT_LAST (obj[LEDGER(0)] != ABSENT)
#define ALL_DELIVERED (obj[RECEIPT(0, 0)] != ABSENT && obj[RECEIPT(0, 1)] != ABSENT)
#if defined(NODES)
/* N-6: what was whole on the nodes, and on record, when the job died is committed by the next start. */
ltl P55_decided { [] (promised -> <> COMMITTED(0)) }
#elif INCS == 1
/* P-55, P-2: a live coordinator decides, whatever becomes of the ranks, unless its deadline passed while there was trouble. */
ltl P55_decided { <> (DECIDED_AT_LAST || gave_up) }
#else
/* P-55, P-10: what was delivered before a newer incarnation was claimed is decided, whoever died. */
ltl P55_decided { [] ((ALL_DELIVERED && obj[CLAIM(2)] == ABSENT) -> <> DECIDED_AT_LAST) }
#endif
#elif defined(DEATH)
/* All processes of the job die. */
bit killed;
proctype Death() { atomic { killed = 1; PROMISE } }
#define UNTIL_DEATH unless { killed }
#define GAVE_UP skip
#else
#define UNTIL_DEATH UNTIL_POWER_LOSS
#define GAVE_UP skip
#endif
