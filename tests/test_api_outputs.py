"""Result types, log-probability containers and the text view. No engine is opened."""

from __future__ import annotations

import json
import math
import pickle
import random

import numpy as np
import pytest

from minimax_m31 import (
    CompletionOutput,
    FlatLogprobs,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenScores,
)
from minimax_m31.logprobs import LogprobRows, flatten
from minimax_m31.outputs import RequestError
from minimax_m31.text import Cut, IncrementalText, TextTable, last_token_cut, view

TABLE = TextTable(
    [bytes([i]) for i in range(256)] + [b"[e~[", "\u00e9\u20ac".encode()], special=[256]
)


def rows(
    n: int, k: int, extra: int, vocab: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as the core makes them, from random log-probabilities: own token, top k by rank,
    requested ids.
    """
    width = 1 + k + extra
    ids = np.zeros((n, width), dtype=np.int32)
    values = np.zeros((n, width), dtype=np.float32)
    ranks = np.zeros((n, width), dtype=np.int32)
    wanted = rng.choice(vocab, extra, replace=False)
    for i in range(n):
        p = rng.standard_normal(vocab).astype(np.float32)
        order = np.lexsort((np.arange(vocab), -p))
        rank = np.empty(vocab, dtype=np.int32)
        rank[order] = np.arange(1, vocab + 1)
        ids[i] = [rng.integers(vocab), *order[:k], *wanted]
        values[i], ranks[i] = p[ids[i]], rank[ids[i]]
    return ids, values, ranks


@pytest.mark.parametrize(("k", "extra"), [(0, 0), (1, 0), (5, 0), (0, 3), (4, 6)])
def test_flatten_against_dicts(k: int, extra: int) -> None:
    ids, values, ranks = rows(50, k, extra, 40, np.random.default_rng(k * 10 + extra))
    flat = flatten(ids, values, ranks, k)
    assert len(flat) == 50
    for i in range(50):
        expected = {}
        for j in range(ids.shape[1]):
            expected.setdefault(int(ids[i, j]), Logprob(float(values[i, j]), int(ranks[i, j])))
        assert flat[i] == expected
        assert list(flat[i]) == list(
            expected
        )  # own token first, then by rank, then the requested ids
        assert len(flat[i]) <= 1 + k + extra


def test_rows_look_like_a_list_of_dicts() -> None:
    ids, values, ranks = rows(4, 2, 0, 40, np.random.default_rng(1))
    flat = flatten(ids, values, ranks, 2, none_rows=1, table=TABLE)
    view_rows = LogprobRows(flat, 1)
    assert len(view_rows) == 5
    assert view_rows[0] is None
    assert view_rows[1] == flat[1]
    assert view_rows[-1] == flat[4]
    assert view_rows == list(view_rows)
    assert view_rows[1:3] == [flat[1], flat[2]]
    assert len(flat[1:3]) == 2
    assert flat[1:3][0] == flat[1]
    with pytest.raises(IndexError):
        view_rows[5]


def test_pickle_leaves_the_vocabulary_behind() -> None:
    big = TextTable([b"%d" % i for i in range(200_000)], [])
    ids, values, ranks = rows(3, 2, 0, 40, np.random.default_rng(2))
    flat = flatten(ids, values, ranks, 2, table=big)
    data = pickle.dumps(LogprobRows(flat, 0))
    assert len(data) < 5000
    back = pickle.loads(data)
    assert back[0] == flat[0]
    assert next(iter(back[0].values())).decoded_token == str(ids[0, 0])


def sample_output() -> RequestOutput:
    ids, values, ranks = rows(3, 2, 0, 40, np.random.default_rng(3))
    values[0, 1] = -np.inf
    one = CompletionOutput(
        index=0, text="hello <b>", token_ids=ids[:, 0].tolist(), cumulative_logprob=-math.inf,
        logprobs=LogprobRows(flatten(ids, values, ranks, 2, table=TABLE)), finish_reason="stop",
        token_logprobs=values[:, 0].copy(),
    )  # fmt: skip
    return RequestOutput(request_id="7", prompt="hi", prompt_token_ids=[1, 2], outputs=[one],
    finished=True, seed=5,
                         error=RequestError("invalid", "no"))  # fmt: skip


def test_to_dict_is_finite_json() -> None:
    output = sample_output()
    plain = json.loads(output.to_json())
    assert plain["outputs"][0]["cumulative_logprob"] is None
    assert "Infinity" not in output.to_json()
    assert (
        json.loads(output.to_json(nonfinite=-9999.0))["outputs"][0]["cumulative_logprob"] == -9999.0
    )
    assert plain["outputs"][0]["token_ids"] == output.outputs[0].token_ids
    assert set(plain["metrics"]) >= {"ttft", "tpot", "e2e", "queue_time", "spec"}


def test_outputs_pickle() -> None:
    output = sample_output()
    back = pickle.loads(pickle.dumps(output))
    assert back == output
    assert back.outputs[0].logprobs[0] == output.outputs[0].logprobs[0]


def test_repr_stays_short() -> None:
    output = sample_output()
    output.prompt = "x" * 100_000
    output.prompt_token_ids = list(range(100_000))
    output.outputs = [
        CompletionOutput(index=i, text="y" * 10_000, token_ids=list(range(10_000)))
        for i in range(100)
    ]
    text = repr(output)
    assert len(text.splitlines()) <= 10
    assert len(text) < 3000


def test_html_escapes_model_text() -> None:
    assert "<b>" not in sample_output().outputs[0]._repr_html_()


def test_absent_names_of_other_engines_are_none() -> None:
    output = RequestOutput()
    assert output.lora_request is None
    assert output.kv_transfer_params is None
    assert CompletionOutput().token_ids_np.dtype == np.int32


def test_metrics() -> None:
    m = RequestMetrics(arrival_time=1.0, scheduled_ts=1.5, first_token_ts=2.0, last_token_ts=4.0,
    finished_ts=4.5,
                       num_generation_tokens=5)  # fmt: skip
    assert (m.queue_time, m.ttft, m.tpot, m.e2e) == (0.5, 1.0, 0.5, 3.5)
    assert RequestMetrics().to_dict()["ttft"] == 0.0


def test_token_scores() -> None:
    scores = TokenScores(
        [1, 2, 3], 1, np.array([-1.0, -2.0], np.float32), np.array([1, 4], np.int32)
    )
    assert scores.sum == -3.0
    assert scores.is_greedy.tolist() == [True, False]
    assert json.dumps(scores.to_dict())
    assert isinstance(FlatLogprobs, type)


# ---------------------------------------------------------------- text


def test_view_without_a_stop() -> None:
    tokens = [104, 256, 0xC3, 0xA9, 0xE2]
    assert view(TABLE, tokens, None, skip_special=True, include_stop=False) == ("h\u00e9\ufffd", 5)
    assert (
        view(TABLE, tokens, None, skip_special=False, include_stop=False).text
        == "h[e~[\u00e9\ufffd"
    )


def test_view_cuts_inside_a_token() -> None:
    tokens = [97, 257, 98]  # "a", "é€", "b": bytes 0, 1..5, 6
    assert view(TABLE, tokens, Cut(3, 6), skip_special=True, include_stop=False) == ("a\u00e9", 1)
    assert view(TABLE, tokens, Cut(3, 6), skip_special=True, include_stop=True) == (
        "a\u00e9\u20ac",
        2,
    )


def test_stop_token_is_not_text() -> None:
    tokens = [97, 98, 256]
    cut = last_token_cut(TABLE, tokens)
    assert view(TABLE, tokens, cut, skip_special=False, include_stop=False) == ("ab", 2)
    assert view(TABLE, tokens, cut, skip_special=False, include_stop=True) == ("ab[e~[", 3)


def first_stop(data: bytes, stops: list[bytes]) -> tuple[int, int] | None:
    """Earliest completion; then smallest start; then longest."""
    best: tuple[int, int] | None = None
    for end in range(1, len(data) + 1):
        for stop in stops:
            begin = end - len(stop)
            if begin >= 0 and data[begin:end] == stop and (best is None or begin < best[0]):
                best = (begin, end)
        if best is not None:
            return best
    return None


def test_incremental_text_equals_the_whole_view() -> None:
    """Random tokens, stops and pieces: what was handed out in pieces is exactly the text of the
    whole.
    """
    rng = random.Random(7)
    alphabet = [97, 98, 99, 256, 257, 0xC3, 0xA9, 0xE2, 0x82]
    stops_pool = [b"ab", b"abc", b"ba", b"c", "\u20aca".encode(), b"[e~", b"bb\xc3\xa9"]
    ended = 0
    for _ in range(3000):
        stops = rng.sample(stops_pool, rng.randint(0, 3))
        tokens: list[int] = []
        cut: Cut | None = None
        for _ in range(rng.randint(0, 14)):
            tokens.append(rng.choice(alphabet))
            data = b"".join(TABLE.bytes_of(t) for t in tokens)
            found = first_stop(data, stops)
            if found is not None:
                cut = Cut(*found)
                break
        ended += cut is not None
        skip, include = rng.random() < 0.5, rng.random() < 0.3
        whole = view(TABLE, tokens, cut, skip_special=skip, include_stop=include).text
        stream = IncrementalText(TABLE, skip_special=skip, stops=stops, include_stop=include)
        pieces = []
        at = 0
        rest = (
            rng.randint(1, 3) if cut is not None else rng.randint(0, 3)
        )  # the core ends a sequence with its token
        while at < len(tokens) - rest:
            step = min(rng.randint(1, 3), len(tokens) - rest - at)
            pieces.append(stream.push(tokens[at : at + step]))
            assert whole.startswith("".join(pieces))
            at += step
        pieces.append(stream.finish(tokens[at:], cut))
        assert "".join(pieces) == whole
    assert ended > 500


def test_incremental_text_holds_an_end_token() -> None:
    stream = IncrementalText(TABLE, skip_special=False, end_ids=[256])
    assert stream.push([97, 256]) == "a"
    assert stream.push([98]) == "[e~[b"
    assert stream.push([256]) == ""
    assert stream.finish([], last_token_cut(TABLE, [97, 256, 98, 256])) == ""
