#!/bin/sh
# softmax, symmetric, RPC and scaled attention on Fashion-MNIST, three seeds each: 30 trainings, two at a time, resumable.
# The published RPC-SymViT has symmetric attention in the other blocks. More options may follow, e.g. --epochs 20.
#   sh benchmarks/comparison.sh runs/attention && vitscope report runs/attention/runs
out=${1:?"where to put the runs"}
shift
rpc() { printf 'symmetric; rpc:layers=0,iterations=4,lambd=4,variant=%s|rpc:layers=all,iterations=2,lambd=3,variant=%s|' "$1" "$1"; }
exec vitscope sweep --out "$out" --seeds 3 --workers 2 --threads 1 --data fashion-mnist --share 0.1 --augment flip \
    --model vit_tiny_patch16_224 --model-options img_size=28 patch_size=4 in_chans=1 embed_dim=64 depth=4 num_heads=4 \
    mlp_ratio=2.0 weight_init=jax --epochs 8 --batch-size 64 --optimizer nadamw --lr 3e-3 --smoothing 0.1 \
    --vary "attention=softmax|symmetric|$(rpc code)$(rpc paper)$(rpc exact)scaled:form=matrix|scaled:form=scalar" "$@"
