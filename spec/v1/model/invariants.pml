/*
 * The invariants of chapter 8, checked whenever a record appears or something is lost.
 *
 * A name that an assertion begins with is never true: it only tells which invariant a counterexample breaks.
 */

hidden byte P50_readable_commit_verifies;
hidden byte P51_one_decision_that_never_changes;
hidden byte P52_captured_at_its_step_by_its_writer;
hidden byte P53_head_goes_back_only_by_a_base;
hidden byte P54_what_is_needed_is_not_deleted;
hidden byte P56_superseded_commits_nothing;
hidden byte P44_acknowledged_is_durable;
hidden byte P41_unknown_is_not_failure;
hidden byte P40_two_manifests_differ;
hidden byte P32_told_complete_means_taken;
hidden byte P12_abort_needs_a_proof;
hidden byte P11_complete_is_rolled_forward;
hidden byte K17_lost_data_was_retired;
hidden byte P58_abort_is_for_the_job_or_a_newer_one;
hidden byte N5_receipt_vouches_for_data;
hidden byte N6_whole_on_the_nodes_is_committed;
hidden byte N8_nothing_rests_on_nodes_only;

#define CHECK(invariant, condition) assert(invariant || (condition))

/* What happened, for the invariants alone: no process of the protocol reads it. */
byte first[GENS];                 /* the first decision of each generation */
byte acknowledged, told_failed;   /* generations, as bits: told to a caller as committed, as not committed */
byte pinned;                      /* generations whose pin was reported as kept (K-15) */
bit promised;                     /* all is whole on the nodes, and on record, and its job is dead (N-6) */
byte line = FRESH, line_of = 1;   /* the newest incarnation whose start was acknowledged, and its newest commit or base */

#ifdef ANYBODY
bit deadline;                     /* the job's own deadline for receipts has passed (P-34) */
#define TOO_LATE deadline = 1
#else
#define TOO_LATE skip
#endif

#define BIT(g) (1 << (g))
#define HAS(set, g) ((set) & BIT(g))
#if INCS > 3
#define NEWEST_BASE (obj[BASE(4)] -> 4 : (obj[BASE(3)] -> 3 : (obj[BASE(2)] -> 2 : 1)))
#elif INCS > 2
#define NEWEST_BASE (obj[BASE(3)] -> 3 : (obj[BASE(2)] -> 2 : 1))
#elif INCS > 1
#define NEWEST_BASE (obj[BASE(2)] -> 2 : 1)
#else
#define NEWEST_BASE 1
#endif

#if GEN_INCS * SAVES == 1
#define EACH(P) P(0)
#elif GEN_INCS * SAVES == 2
#define EACH(P) (P(0) && P(1))
#elif GEN_INCS * SAVES == 3
#define EACH(P) (P(0) && P(1) && P(2))
#else
#define EACH(P) (P(0) && P(1) && P(2) && P(3))
#endif

#define COMMITTED(g) IS_MANIFEST(obj[LEDGER(g)])
#define READABLE(g) (COMMITTED(g) && obj[RETIRED(g)] == ABSENT)
#define DELIVERED(g, r) (obj[RECEIPT(g, r)] >= COMPLETE(0))
#define ANY_FAILED(g) (obj[RECEIPT(g, 0)] == FAILED || obj[RECEIPT(g, 1)] == FAILED)
#define CHUNK(g, r) obj[DATA(g, DATABASE(WRITER(obj[RECEIPT(g, r)])))]
#define DATA_THERE(g) (DELIVERED(g, 0) && DELIVERED(g, 1) && CHUNK(g, 0) != ABSENT && CHUNK(g, 1) != ABSENT)
#define WHOLE(g) (obj[INDEX(g)] == WHOLE_INDEX && DATA_THERE(g))
#define SOURCES_THERE(g) ((g) != REFERRING || DATA_THERE(SOURCE))

/* P-50, without components by reference, for which P-54 answers. */
#define VERIFIES(g) (!READABLE(g) || WHOLE(g))
/* P-52: each chunk is what the process that the receipt speaks for captured at the step. */
#define OWN(g, r) (CHUNK(g, r) == ABSENT || CHUNK(g, r) == CAPTURED_BY(WRITER(obj[RECEIPT(g, r)])))
#define CAPTURED(g) (!READABLE(g) || !DELIVERED(g, 0) || !DELIVERED(g, 1) || (OWN(g, 0) && OWN(g, 1)))
/* P-54, K-7: the sources of a commit; the base that a job was told to restore, while no newer one is recorded; a pin. */
#define IN_USE(g) (line_of > 1 && line_of == NEWEST_BASE && obj[BASE(line_of)] == AT(g) || HAS(pinned, g))
#define KEPT(g) ((!READABLE(g) || SOURCES_THERE(g)) && (!IN_USE(g) || WHOLE(g) && SOURCES_THERE(g)))
/* P-44, and P-41: nobody was told the opposite of what the ledger says. */
#define DURABLE(g) (!HAS(acknowledged, g) || COMMITTED(g))
#define HONEST(g) (!HAS(told_failed, g) || !COMMITTED(g))

inline check_all()
{
	CHECK(P44_acknowledged_is_durable, EACH(DURABLE));
	CHECK(P41_unknown_is_not_failure, EACH(HONEST));
	CHECK(P50_readable_commit_verifies, EACH(VERIFIES));
	CHECK(P52_captured_at_its_step_by_its_writer, EACH(CAPTURED));
	CHECK(P54_what_is_needed_is_not_deleted, EACH(KEPT))
}

/* Called in the same step as the put of a decision, by whom it may concern (incarnation `by`). */
inline observe_decision(g, value, by, created)
{
	CHECK(P51_one_decision_that_never_changes, first[g] == ABSENT || first[g] == obj[LEDGER(g)]);
	CHECK(P56_superseded_commits_nothing, !created || !COMMITTED(g) || by >= NEWEST_BASE);
	CHECK(N6_whole_on_the_nodes_is_committed, !promised || COMMITTED(g));
	first[g] = obj[LEDGER(g)];
	line = (COMMITTED(g) && INC(g) == line_of && line < AT(g) -> AT(g) : line);
	check_all()
}

/*
 * P-53: a start that was not told its base goes on where the last acknowledged start, or its newest commit, is; or where
 * the recorded base of an incarnation in between is, that nobody was told of. A rollback that is reported after a newer start
 * was acknowledged must be what that one began from (P-22).
 */
#if INCS > 2
#define BASE_BETWEEN(n, b) (n > 2 && line_of < 2 && obj[BASE(2)] == b || n > 3 && line_of < 3 && obj[BASE(3)] == b)
#else
#define BASE_BETWEEN(n, b) false
#endif

inline observe_start(n, b, by_hand)
{
	CHECK(P53_head_goes_back_only_by_a_base, n > line_of -> by_hand || b == line || BASE_BETWEEN(n, b) : !by_hand || obj[BASE(line_of)] == b);
	line = (n > line_of -> b : line);
	line_of = (n > line_of -> n : line_of);
	acknowledged = (b == FRESH -> acknowledged : acknowledged | BIT(GENERATION(b)));
	check_all()
}
