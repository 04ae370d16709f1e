#!/bin/bash
# On every host of a TPU slice: start the program, and again when it fails, until it is done. RUN=gs://bucket/run tpu-vm.sh python train.py …
#
# Started everywhere at once:
#   gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --worker=all --command='RUN=gs://bucket/run ./tpu-vm.sh python train_jax.py gs://bucket/run 100000'
set -u

: "${RUN:?set RUN to the URL of the run}"
most=${MAX_RESTARTS:-3} # restarts in a row without a newly committed step

resume_point() {
    ckpt ls "$RUN" 2>/dev/null | sed -n 's/^\* *\([0-9-]*\) .*/\1/p'
}

# A machine that is taken back sends SIGTERM to all processes. The program saves then; here it is only noted, since a second one
# would end it at once.
stopped=0
trap 'stopped=1' TERM

restarts=0
while true; do
    before=$(resume_point)
    "$@"
    status=$?
    if [ "$status" -eq 0 ] || [ "$stopped" -eq 1 ]; then
        exit "$status"
    fi
    if [ "$(resume_point)" = "$before" ]; then
        restarts=$((restarts + 1))
    else
        restarts=0
    fi
    if [ "$restarts" -gt "$most" ]; then
        echo "$most restarts without a newly committed step:" >&2
        ckpt explain "$RUN" >&2
        exit "$status"
    fi
    sleep "${PAUSE:-10}" # the other hosts' processes end too
done
