#!/bin/sh
# softmax, symmetric and RPC attention in a small segmenter with the mask decoder, three seeds each, on scenes of digits:
# 9 trainings, each then judged on clean scenes and under the 15 corruptions. Killed, the same command goes on.
# More options of the trainings may follow, e.g. --epochs 20.
#   sh benchmarks/segmentation_comparison.sh runs/segmentation
#   python docs/figures/segmentation_comparison.py runs/segmentation
out=${1:?"where to put the runs"}
shift
for seed in 0 1 2; do
    for name in softmax symmetric rpc; do
        case $name in
        rpc) attention='symmetric; rpc:layers=0,decoder=0,iterations=6,lambda=4' ;; # published: both first blocks
        *) attention=$name ;;
        esac
        vitscope train --recipe segmenter-small --model-options decoder=mask decoder_dropout=0 --batch-size 8 \
            --epochs 12 --attention "$attention" --seed $seed --out "$out/trained/$name-$seed" "$@" || exit
        vitscope evaluate "$out/trained/$name-$seed" --data digit-scenes --corrupt all --severities 3 --images 150 \
            --weights "$out/trained/$name-$seed/checkpoints/last/model.safetensors" --out "$out/judged/$name-$seed" || exit
    done
done
