"""Trained language models as folders that transformers can read: writing them, generating text, and
running the evaluation harness."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from hypvision.io import HypvisionError, Plain, StrPath, ensure, one_line, one_of, require
from hypvision.io.files import check_new_folder, replacing_folder

from .closures import one_thread

# The tasks in the paper's tables, and the number of examples in the prompt of each.
TASKS = {"commonsense_qa": 0, "openbookqa": 0, "hellaswag": 0, "mmlu": 5, "arc_challenge": 5}
PROMPT_STYLES = ("harness", "official")


def save_folder(
    config: StrPath, weights: StrPath, folder: StrPath, options: dict | None = None
) -> Path:
    """Write a language model and its tokenizer as a new ``folder`` that transformers can read.

    ``config`` is the config of a ``LanguageModel`` that ``hypvision train`` has trained, changed by
    ``options``; ``weights`` is its checkpoint. Returns the folder."""
    require("mmengine", "mm")
    transformers = require("transformers", "lm")
    from hypvision.data.language import load_tokenizer
    from hypvision.engine.config import load_config
    from hypvision.engine.predicting import trained_model
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    from .language import LanguageModel

    check_new_folder(folder)
    loaded = load_config(config, options)
    ensure(
        loaded.kind == "LanguageModel",
        f"The config '{loaded.filename}' describes a model {loaded.kind}, not a "
        "LanguageModel. Give one of configs/helm, or your own like them.",
    )
    trained = trained_model(loaded, weights)
    assert isinstance(trained, LanguageModel)
    name = loaded.dataset("train").get("tokenizer", "byte")
    read: Any = load_tokenizer(name)  # its documents begin with the same token as in the training
    if name == "byte":
        tokenizer = transformers.ByT5Tokenizer(extra_ids=0)
        tokenizer.model_max_length = trained.decoder.config.max_seq_len
    else:
        tokenizer = read.inner
    ends = dict(
        bos_token_id=read.bos_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=read.pad_id
    )
    model = HelmForCausalLM(HelmConfig.of(trained.decoder.config, **ends))
    model.model.load_state_dict(trained.decoder.state_dict())
    with replacing_folder(Path(folder)) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return Path(folder)


def load_folder(folder: StrPath, device: str = "cpu"):
    """Return the model, in evaluation mode on ``device``, and the tokenizer of a folder."""
    transformers = require("transformers", "lm")
    import hypvision.helm.huggingface  # noqa: F401 - registers the model

    ensure(
        Path(folder, "config.json").is_file(),
        f"'{folder}' is not the folder of a language model: it has no config.json. Write one "
        "with hypvision lm save CONFIG WEIGHTS FOLDER.",
    )
    # Without trust_remote_code transformers asks whether to run code from the folder.
    options = dict(local_files_only=True, trust_remote_code=False)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, use_safetensors=True, **options
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    except HypvisionError:
        raise
    except Exception as error:  # the readers raise errors of many classes for damaged files
        raise HypvisionError(
            f"The model in '{folder}' cannot be loaded: {one_line(error)}. Write it again with "
            "hypvision lm save."
        ) from error
    ensure(
        len(tokenizer) <= model.config.vocab_size,
        f"The tokenizer in '{folder}' has {len(tokenizer)} tokens, but the model has a "
        f"vocabulary of {model.config.vocab_size}. Put the tokenizer of the model's training "
        "into the folder.",
    )
    return model.eval().to(device), tokenizer


@torch.inference_mode()
def generate(
    folder: StrPath,
    prompts: Sequence[str],
    tokens: int = 200,
    temperature: float = 1.0,
    top_p: float = 1.0,
    beams: int = 1,
    seed: int = 0,
    device: str = "cpu",
) -> list[str]:
    """Return continuations of ``prompts``, with at most ``tokens`` new tokens, by the model in a
    folder (:func:`load_folder`).

    Tokens are sampled from the likeliest ones whose probabilities sum to ``top_p``; with
    ``temperature=0`` the likeliest token is taken each time; with several ``beams`` a beam search
    finds the continuation without sampling."""
    model, tokenizer = load_folder(folder, device)
    begin = model.config.bos_token_id
    rows = [[begin, *tokenizer.encode(prompt, add_special_tokens=False)] for prompt in prompts]
    longest = max(map(len, rows))
    ensure(
        longest + tokens <= model.config.max_seq_len,
        f"A prompt of {longest} tokens and {tokens} new ones are more than the model's context "
        f"of {model.config.max_seq_len} tokens. Shorten the prompt, or ask for fewer new "
        "tokens with --tokens.",
    )
    fill = model.config.pad_token_id if model.config.pad_token_id is not None else begin
    ids = torch.tensor([[fill] * (longest - len(row)) + row for row in rows], device=device)
    mask = torch.tensor(
        [[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device
    )
    sample = temperature > 0 and beams == 1
    torch.manual_seed(seed)
    how = (
        dict(do_sample=True, temperature=temperature, top_p=top_p, top_k=0)
        if sample
        else dict(do_sample=False)
    )
    with _few_threads(model):
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            num_beams=beams,
            pad_token_id=fill,
            **how,
        )
    return [
        _continuation(tokenizer, row, list(new))
        for row, new in zip(rows, found[:, longest:].tolist())
    ]


def _continuation(tokenizer, prompt: list[int], new: list[int]) -> str:
    """Return the text that new tokens add to a prompt. Both are decoded together, because some
    tokenizers write no blank before the first word of a text, and so would lose the blank between
    prompt and continuation."""
    before, whole = (
        tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, prompt + new)
    )
    return (
        whole[len(before) :]
        if whole.startswith(before)
        else tokenizer.decode(new, skip_special_tokens=True)
    )


def _few_threads(model: Any) -> AbstractContextManager[None]:
    """Use one thread for a small model on a CPU: a token takes a few hundred tiny products."""
    return one_thread() if model.num_parameters() < 10_000_000 else nullcontext()


def evaluate(
    folder: StrPath,
    tasks: Sequence[str] = tuple(TASKS),
    shots: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    prompt_style: str = "harness",
    include: StrPath | None = None,
    device: str = "cpu",
) -> dict[str, Plain]:
    """Run tasks of the lm-evaluation-harness through its own backend for models of transformers.

    Args:
        folder: see :func:`load_folder`.
        tasks: names of the harness's tasks.
        shots: number of examples in the prompt; None: the paper's number for its five tasks, and
            the task's own for others.
        limit: largest number of items of each task.
        batch_size: number of requests at a time.
        prompt_style: ``"harness"``, or ``"official"`` for prompts like those of the published
            adapter.
        include: folder with further tasks.

    Returns:
        The harness's results by task.
    """
    one_of(PROMPT_STYLES, prompt_style=prompt_style)
    harness, tasks_of, backend = (
        require(f"lm_eval{part}", "eval") for part in ("", ".tasks", ".models.huggingface")
    )
    manager = tasks_of.TaskManager(include_path=None if include is None else str(include))
    unknown = sorted({*tasks} - {*manager.all_tasks})
    if unknown:
        raise HypvisionError(
            f"The harness has no task '{unknown[0]}'. The command lm_eval ls tasks lists its tasks."
        )
    model, tokenizer = load_folder(folder, device)
    kind = _official_prompts(backend.HFLM) if prompt_style == "official" else backend.HFLM
    # The published adapter ignores the batch size, so its prompts are computed one by one.
    wrapped = kind(
        pretrained=model, tokenizer=tokenizer,
        batch_size=batch_size if prompt_style == "harness" else 1, device=device,
        max_length=model.config.max_seq_len, backend="causal",
    )  # fmt: skip
    results: dict[str, Plain] = {}
    groups: dict[int | None, list[str]] = {}
    for task in tasks:
        groups.setdefault(TASKS.get(task) if shots is None else shots, []).append(task)
    for count, names in groups.items():
        try:
            found = harness.simple_evaluate(
                wrapped, tasks=names, num_fewshot=count, limit=limit, task_manager=manager,
                log_samples=False, bootstrap_iters=0,
            )  # fmt: skip
        except OSError as error:  # covers errors of files and of the network
            raise HypvisionError(
                f"The harness could not read the items of {', '.join(names)}: "
                f"{str(error).splitlines()[0]}. It loads them from the hub; without a network give "
                "tasks of local files with --include."
            ) from error
        results |= found["results"]
    return results


def _official_prompts(backend: type) -> type:
    """Return a subclass of a backend that makes the prompts of the published adapter: context and
    continuation are tokenized separately, a full stop is added to every context that does not end
    in a full stop and a blank, and a prompt that is too long loses the beginning of its context."""

    class OfficialPrompts(backend):
        def loglikelihood(self, requests, disable_tqdm: bool = False):
            pairs = []
            for context, continuation in (request.args for request in requests):
                context = context if context.endswith(". ") else f"{context}."
                ahead = [self.prefix_token_id, *self.tok_encode(context, add_special_tokens=False)]
                behind = self.tok_encode(continuation, add_special_tokens=False)
                left = self.max_length - len(behind)
                pairs.append(((context, continuation), ahead[-left:], behind))
            return self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)

    return OfficialPrompts
