# shellcheck shell=bash disable=SC2034
# The jobs and variants of BytePS's reproduction guide, with the guide's hyper-parameters, and some
# more variants. Sourced with JOB and VARIANT. Sets the script and its arguments, and the default
# numbers of machines and threads.

job=$1 variant=$2

threads=16 # for compression, as in the guide
case ${variant%-fp16} in
  baseline) threads=0 compression=() ;;
  onebit)
    compression=(--compressor onebit --onebit-scaling --ef vanilla --compress-momentum nesterov)
    ;;
  topk) compression=(--compressor topk --k 0.001) ;;
  randomk) compression=(--compressor randomk --k 0.001) ;;
  dithering) compression=(--compressor dithering --k 2 --normalize l2) ;;
  bytegrad) compression=(--compressor bytegrad) ;;
  dgc)
    compression=(
      --compressor dgc --k 0.001 --dgc-warmup-epochs 4 --dgc-warmup-coeff 0.25,0.0625,0.015625,0.004
      --compress-momentum nesterov
    )
    ;;
  fp16) threads=0 compression=(--fp16-pushpull) ;;
  *)
    fail "VARIANT must be baseline, onebit, topk, randomk, dithering, fp16, bytegrad or dgc, or one" \
      "with -fp16, got '$variant'"
    ;;
esac
[[ $variant != *-fp16 ]] || compression+=(--fp16-pushpull) # for tensors that are not compressed
export BYTEPS_THREADPOOL_SIZE="${BYTEPS_THREADPOOL_SIZE:-$threads}"
export BYTEPS_MIN_COMPRESS_BYTES="${BYTEPS_MIN_COMPRESS_BYTES:-1024000}" # as in the guide

records=$CLUSTER_DATA/ILSVRC2012
records=(
  --use-rec --rec-train "$records/train.rec" --rec-train-idx "$records/train.idx"
  --rec-val "$records/val.rec" --rec-val-idx "$records/val.idx"
)
rate=0.1 # of ResNet-50; the guide doubles it for training without a compressor
[[ $variant != baseline && $variant != fp16 ]] || rate=0.2

case $job in
  cifar100)
    machines=8 script=cifar100/train_cifar100.py
    training=(
      --model resnet18_v2 --batch-size 32 --num-epochs 200 --warmup-epochs 10 --warmup-lr 0.1
      --lr 0.1 --data-dir "$CLUSTER_DATA/cifar100"
    )
    ;;
  resnet50)
    machines=8 script=imagenet/train_imagenet.py
    training=(
      --model resnet50_v2 --batch-size 64 --num-epochs 120 --warmup-epochs 5 --warmup-lr "$rate"
      --lr "$rate" --lr-mode cosine "${records[@]}"
    )
    ;;
  vgg16)
    machines=4 script=imagenet/train_imagenet.py
    training=(
      --model vgg16 --batch-size 32 --num-epochs 100 --warmup-epochs 5 --warmup-lr 0.01 --lr 0.01
      --lr-decay-epoch "50,80" "${records[@]}"
    )
    ;;
  *) fail "JOB must be cifar100, resnet50 or vgg16, got '$job'" ;;
esac
export DMLC_NUM_WORKER="${DMLC_NUM_WORKER:-$machines}"
[[ ${DMLC_NUM_SERVER:-$CLUSTER_SERVERS} != 0 ]] || fail "CLUSTER_SERVERS must be positive for $job"

arguments=(
  "${training[@]}" --mode hybrid --num-gpus "$CLUSTER_GPUS" -j 2
  --logging-file "$job-$variant.jsonl" --save-dir "params/$job-$variant" "${compression[@]}"
)
