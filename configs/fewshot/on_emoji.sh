#!/usr/bin/env bash
# The benchmark on a small machine: few-shot methods on the zoo's CLIP of emoji, every cell 200 steps.
#   bash configs/fewshot/on_emoji.sh DATA RESULTS [PART ...]
# DATA has emoji/ and grocery/ (docs/data.md). PARTs: base2new shots dg cross grocery ablations; all by default.
# Finished cells are skipped, cut ones go on. Then: hypvision fewshot table RESULTS
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,6s/^# *//p' "$0"; exit 2; }
data=$1 out=$2
shift 2
parts=${*:-base2new shots dg cross grocery ablations}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
styles=(noto noto-v1 twemoji openmoji fluent fluent-flat fluent-mono fxemoji)

for style in "${styles[@]}"; do
  mkdir -p "$data/emoji-$style"
  [ -e "$data/emoji-$style/images" ] || ln -s ../emoji/images "$data/emoji-$style/images"
  [ -e "$data/emoji-$style/split.json" ] || cp "$data/emoji/splits/coop/split_$style.json" "$data/emoji-$style/split.json"
  rm -f "$data/emoji-$style/template.txt"  # of earlier versions; the weights name their own
done
# A linear probe knows only the classes of its training: for base to new, those of base alone
mkdir -p "$data/emoji-noto-base"
[ -e "$data/emoji-noto-base/images" ] || ln -s ../emoji/images "$data/emoji-noto-base/images"
python - "$data/emoji-noto/split.json" "$data/emoji-noto-base/split.json" << 'SPLIT'
import json, sys
from pathlib import Path

parts = json.loads(Path(sys.argv[1]).read_text())
half = (len({label for _, label, _ in parts["train"]}) + 1) // 2
base = {name: [row for row in rows if row[1] < half] for name, rows in parts.items()}
Path(sys.argv[2]).write_text(json.dumps(base))
SPLIT

# run FOLDER ARGUMENTS: a folder holds cells of one kind of settings
run() {
  hypvision fewshot "${@:2}" --out "$out/$1" --root "$data" --cache "$data/features" \
    --clip emoji-s16:zoo:emoji-s16.captions --size 64 --steps 200
}
prompts() { run "${1}" "${@:2}" --batch 16 --host depth=4; }
# The teacher is PromptSRC on the same CLIP: self-distillation
promptkd() {
  run self-distillation "$@" --batch 16 --method promptkd promptkd+lath --host depth=4 \
    --teacher "$out/prompts/$1/promptsrc/{dataset}/{shots}shots-seed{seed}/epoch_20.pth" \
    --teacher-host depth=4
}

for part in $parts; do
  case $part in
    base2new)
      noto=(base2new --datasets emoji-noto)
      run heads "${noto[@]}" --batch 16 --method zeroshot --seeds 1
      prompts prompts "${noto[@]}" --method promptsrc promptsrc+lath maple maple+lath
      promptkd "${noto[@]}"
      run heads "${noto[@]}" --batch 16 --method clip-adapter
      run heads shots --datasets emoji-noto-base --shots 16 --batch 16 --method linear-probe
      run random "${noto[@]}" --batch 16 --method coop --host tokens=16 words=
      run words "${noto[@]}" --batch 16 --method coop --host tokens=4 words="a photo of a"
      run cocoop "${noto[@]}" --batch 4 --method cocoop
      ;;
    shots)
      for shots in 4 1 2 8; do
        few=(shots --datasets emoji-noto --shots $shots)
        [ $shots != 4 ] || run heads "${few[@]}" --batch 16 --method zeroshot --seeds 1
        prompts prompts "${few[@]}" --method promptsrc promptsrc+lath maple maple+lath
        run heads "${few[@]}" --batch 16 --method coop clip-adapter tip-adapter-f linear-probe
        [ $shots != 4 ] || run cocoop "${few[@]}" --batch 4 --method cocoop
      done
      ;;
    dg)
      domains=(dg --source emoji-noto --datasets "${styles[@]/#/emoji-}")
      run heads "${domains[@]}" --batch 16 --method zeroshot --seeds 1
      prompts prompts "${domains[@]}" --method promptsrc promptsrc+lath maple maple+lath
      run heads "${domains[@]}" --batch 16 --method clip-adapter
      ;;
    cross)
      run heads cross --source emoji-noto --datasets grocery --batch 16 --method zeroshot --seeds 1
      prompts prompts cross --source emoji-noto --datasets grocery --method promptsrc promptsrc+lath maple maple+lath
      ;;
    grocery)
      few=(shots --datasets grocery)
      run heads "${few[@]}" --shots 1 --batch 16 --method zeroshot --seeds 1
      prompts prompts "${few[@]}" --shots 4 1 16 --method promptsrc promptsrc+lath
      run heads "${few[@]}" --shots 1 4 16 --batch 16 --method coop clip-adapter tip-adapter-f linear-probe
      prompts prompts "${few[@]}" --shots 1 4 16 --method maple maple+lath
      ;;
    ablations)
      for option in hierarchy=False beta=0.01 beta=0.5 beta=1 attributes=4 attributes=24 attributes=48 c=0.01 c=1 start=text; do
        prompts "ablations/$option" base2new --datasets emoji-noto --method promptsrc+lath --adapter $option
      done
      ;;
    *)
      echo "There is no part '$part': base2new, shots, dg, cross, grocery, ablations." >&2
      exit 2
      ;;
  esac
done
