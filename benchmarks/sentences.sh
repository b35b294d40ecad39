#!/bin/sh
# Two small language models are trained on pydoc, with softmax and with symmetric attention, and then tuned on the sentences
# of its topics: with the attention that they have, and with RPC in tuning alone (2 iterations in all layers). Three seeds
# of each tuning. Called again, it goes on where it was.
#   sh benchmarks/sentences.sh runs/sentences && vitscope report runs/sentences/tuned
# $RUN, if set, stands before every command. Options that follow are those of the tunings, e.g. --epochs 5.
out=${1:?"where to put the runs"}
shift
rpc=rpc:iterations=2,lambda=3,variant=paper
for kind in softmax symmetric; do
    $RUN vitscope train --recipe quick-text --attention $kind --epochs 4 --no-progress --out "$out/words/$kind"
    for seed in 0 1 2; do
        for attention in $kind $rpc,symmetric=$([ $kind = symmetric ] && echo true || echo false); do
            name=$kind-${attention%%:*}
            $RUN vitscope train --recipe sentences --weights "$out/words/$kind" --lr 1e-3 --epochs 4 --seed $seed \
                --attention "$attention" --label "$name" --no-progress --out "$out/tuned/$name-$seed" "$@"
        done
    done
done
