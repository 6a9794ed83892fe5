"""Text to batches: nothing lost, nothing counted twice, padding never counted; and the losses."""

import gzip

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from experiments import losses
from experiments.batching import BatchSource, Buckets, make_batch, plan_epoch, plan_in_order
from experiments.data import FileTask, from_lists, load_examples
from experiments.distill import Objective, Stage
from experiments.losses import LossWeights
from experiments.optimizers import Schedule
from experiments.top_rows import TopRows, merged_log_probs
from experiments.vocabulary import sorted_by_use, train_vocabulary
from specdec.vocabulary import Vocabulary

BUCKETS = Buckets((4, 8), slots_per_batch=16)


def made_up(num_pairs=23, num_tasks=1):
    """Pairs whose first input id tells which pair it is."""
    rng = np.random.default_rng(0)
    inputs, targets, task_ids = [], [], []
    for index in range(num_pairs):
        inputs.append([100 + index, *rng.integers(2, 9, rng.integers(0, 6)), 1])
        targets.append([*rng.integers(2, 9, rng.integers(0, 7)), 1])
        task_ids.append(index % num_tasks)
    return from_lists(inputs, targets, task_ids)


def rows_of(planned, examples):
    """(which pair, target ids) of every real row of the planned batches."""
    rows = []
    for plan in planned:
        batch = make_batch(examples, plan, BUCKETS)
        for row in range(len(batch.inputs)):
            if batch.target_lengths[row]:
                target = batch.targets[row, : batch.target_lengths[row]]
                rows.append((int(batch.inputs[row, 0]) - 100, tuple(target.tolist())))
    return rows


# Reading and tokenising


def test_pairs_come_from_the_columns_and_lines_asked_for(tmp_path):
    path = tmp_path / "pairs.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.write("a\tA\tx\nb\tB\ty\n\tC\tx\nd\tD\tx\ne\tE\tx\n")
    task = FileTask(str(path), filter_column=2, filter_value="x", source_column=1, target_column=0)
    assert list(task.pairs()) == [("A", "a"), ("D", "d"), ("E", "e")]
    short = FileTask(str(path), target_column=3)
    with pytest.raises(ValueError, match=r"line 1: has no columns \(0, 3, None\) \(3 columns"):
        list(short.pairs())


def test_json_lines_have_keys_for_columns(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"en": "a", "de": "A", "n": 1}\n{"en": "b\\tb", "de": "B"}\n')
    task = FileTask(str(path), source_column="en", target_column="de")
    assert task.pairs() == [("a", "A"), ("b\tb", "B")]
    with pytest.raises(
        ValueError, match=r"line 1: has no columns \('en', 'fr', None\) \(keys en, de"
    ):
        FileTask(str(path), source_column="en", target_column="fr").pairs()
    path.write_text("[1, 2\n")
    with pytest.raises(ValueError, match=r"line 1: .*no JSON object"):
        FileTask(str(path), source_column="en", target_column="de").pairs()


def test_text_has_no_columns(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\tline\n\nanother\n")
    task = FileTask(str(path), source_column=None)
    assert task.pairs() == [("", "one\tline"), ("", "another")]


def test_limit_takes_pairs_spread_over_the_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{n}\t{n}\n" for n in range(9)))
    assert [source for source, _ in FileTask(str(path), limit=3).pairs()] == ["0", "4", "8"]


def test_missing_file_and_useless_weight_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no data file at"):
        FileTask(str(tmp_path / "none.tsv"))
    path = tmp_path / "pairs.tsv"
    path.touch()
    with pytest.raises(ValueError, match=r"weight=-0\.5"):
        FileTask(str(path), weight=-0.5)


@pytest.fixture
def spoken(tmp_path):
    """A task and its vocabulary."""
    path = tmp_path / "pairs.tsv"
    path.write_text("red door\trote Tür\nold house\taltes Haus\n" * 3)
    task = FileTask(str(path), prefix="to German: ")
    return task, train_vocabulary(str(tmp_path), tasks=[task], num_pieces=275)


def test_vocabulary_has_t5s_ids_and_spells_what_it_never_saw(spoken):
    _, vocabulary = spoken
    processor = vocabulary.processor
    assert [processor.id_to_piece(token) for token in (0, 1, 2)] == ["<pad>", "</s>", "<unk>"]
    assert vocabulary.num_rows == 384
    for text in ("red door", "rote Tür", "Ωμέγα 中 😀"):
        (tokens,) = vocabulary.encode([text])
        assert vocabulary.decode([*tokens, 1, 5]) == text
        assert 2 not in tokens
    prefixed, plain = vocabulary.encode(["to German: red door", "red door"])
    assert len(prefixed) == len(plain) + 1


def test_ids_are_sorted_by_how_often_outputs_use_them_and_texts_are_split_as_before(spoken):
    _, vocabulary = spoken
    processor = vocabulary.processor
    outputs = ["altes Haus", "altes Haus", "rote Tür", "ñ"]
    model, order = sorted_by_use(processor.serialized_model_proto(), outputs)
    again = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert order[:3] == [0, 1, 2] and sorted(order) == list(range(275))
    for text in [*outputs, "to German: red door"]:
        assert [order[token] for token in again.encode(text)] == processor.encode(text)
        assert again.decode(again.encode(text)) == text
    counts = np.bincount(np.concatenate([again.encode(text) for text in outputs]), minlength=275)
    assert (np.diff(counts[3:]) <= 0).all()


def test_examples_are_tokenised_once_and_over_long_pairs_dropped(spoken, tmp_path, capsys):
    task, vocabulary = spoken
    cache = str(tmp_path / "cache")
    first = load_examples([task], vocabulary, max_lengths=(64, 64), cache_dir=cache)
    assert "dropped 0" in capsys.readouterr().out
    again = load_examples([task], vocabulary, max_lengths=(64, 64), cache_dir=cache)
    assert capsys.readouterr().out == ""
    assert again.digest == first.digest
    assert len(first) == 6
    assert vocabulary.decode(first.target(0)) == "rote Tür"
    assert first.target(0)[-1] == 1
    with pytest.raises(ValueError, match=r"no pair .* max_lengths=\(2, 2\) \(6 dropped\)"):
        load_examples([task], vocabulary, max_lengths=(2, 2), cache_dir=cache)


def test_vocabulary_that_is_missing_or_not_t5s_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no vocabulary at"):
        Vocabulary(str(tmp_path / "none.model"))


# Batches


def test_epoch_holds_every_pair_once():
    examples = made_up()
    rows = rows_of(plan_epoch(examples, [1.0], BUCKETS, seed=0, epoch=3), examples)
    assert sorted(index for index, _ in rows) == list(range(23))
    assert all(target == tuple(examples.target(index)) for index, target in rows)
    in_order = rows_of(plan_in_order(examples, BUCKETS), examples)
    assert sorted(in_order) == sorted(rows)


def test_weights_are_passes_per_epoch_spread_evenly():
    examples = made_up(num_tasks=2)
    counts = np.zeros(23, int)
    for epoch in range(4):
        planned = plan_epoch(examples, [0.5, 1.25], BUCKETS, seed=0, epoch=epoch)
        for index, _ in rows_of(planned, examples):
            counts[index] += 1
        if epoch == 1:
            assert set(counts[::2]) == {1}
    assert set(counts[::2]) == {2}
    assert set(counts[1::2]) == {5}


def test_batches_have_the_buckets_shapes_and_decoder_inputs_are_shifted():
    examples = made_up()
    for planned in plan_epoch(examples, [1.0], BUCKETS, seed=0, epoch=0):
        batch = make_batch(examples, planned, BUCKETS)
        assert batch.inputs.shape == batch.targets.shape
        assert batch.targets.shape in {(4, 4), (2, 8)}
        assert batch.decoder_inputs[:, 0].tolist() == [0] * len(batch.targets)
        np.testing.assert_array_equal(batch.decoder_inputs[:, 1:], batch.targets[:, :-1])


def test_buckets_may_be_wide_on_one_side():
    buckets = Buckets((3, (8, 3), 8), slots_per_batch=16)
    assert [buckets.batch_size(shape) for shape in buckets.shapes] == [5, 2, 2]
    inputs, targets = [3, 8, 2, 7], [3, 2, 4, 8]
    examples = from_lists([[2] * length for length in inputs], [[2] * length for length in targets])
    planned = plan_in_order(examples, buckets)
    assert [(plan.shape, plan.indices.tolist()) for plan in planned] == [
        ((3, 3), [0]),
        ((8, 3), [1]),
        ((8, 8), [2, 3]),
    ]
    batch = make_batch(examples, planned[1], buckets)
    assert batch.inputs.shape == (2, 8)
    assert batch.targets.shape == batch.decoder_inputs.shape == (2, 3)
    assert batch.target_lengths.tolist() == [2, 0]


def test_order_follows_from_seed_and_step_alone():
    examples = made_up()
    source = BatchSource(examples, [1.0], BUCKETS, seed=7)
    forward = [source.planned_at(step) for step in range(40)]
    fresh = BatchSource(examples, [1.0], BUCKETS, seed=7)
    for step in (39, 3, 17):
        np.testing.assert_array_equal(fresh.planned_at(step).indices, forward[step].indices)
    other = BatchSource(examples, [1.0], BUCKETS, seed=8)
    assert any(
        other.planned_at(step).indices.tolist() != forward[step].indices.tolist()
        for step in range(8)
    )
    assert source.locate(0) == (0, 0)
    assert source.locate(39)[0] > 0


def test_bad_buckets_are_refused():
    with pytest.raises(ValueError, match="slots_per_batch=7 holds no row of the longest bucket, 8"):
        Buckets((4, 8), slots_per_batch=7)
    with pytest.raises(ValueError, match="must ascend"):
        Buckets((8, 4))
    with pytest.raises(ValueError, match="must ascend, from 2"):
        Buckets(((8, 1),))
    with pytest.raises(ValueError, match="the last one must be the longest on both sides"):
        Buckets((4, (12, 2), 8))


# Losses, worked by hand

P = jnp.array([0.5, 0.5, 0.0])
Q = jnp.array([0.25, 0.5, 0.25])


def test_losses_by_hand():
    log_p, log_q = jnp.log(P), jnp.log(Q)
    assert losses.cross_entropy(log_q, jnp.array(0)) == pytest.approx(np.log(4))
    assert losses.forward_kl(log_p, log_q) == pytest.approx(0.5 * np.log(2))
    assert losses.total_variation(log_p, log_q) == pytest.approx(0.25)
    assert losses.total_variation(log_p, log_p) == pytest.approx(0.0)


def test_ids_that_a_draft_does_not_know_cost_it_nothing_but_overlap():
    p, q = np.log([0.5, 0.25, 0.25]), np.log([0.75, 0.25])
    assert losses.cross_entropy(q, jnp.array(2)) == 0.0
    assert losses.cross_entropy(q, jnp.array(1)) == pytest.approx(np.log(4))
    assert losses.forward_kl(p, q) == pytest.approx(0.5 * np.log(0.5 / 0.75))
    assert losses.total_variation(p, q) == pytest.approx(1 - 0.75)


def test_rows_beyond_the_real_ids_are_no_part_of_a_law():
    logits = jnp.log(jnp.array([1.0, 3.0, 1000.0, 1000.0]))
    np.testing.assert_allclose(jnp.exp(losses.real_log_probs(logits, 2)), [0.25, 0.75], rtol=1e-6)


def test_padding_counts_for_nothing():
    values = jnp.array([[1.0, 2.0, jnp.nan], [3.0, jnp.inf, 9.0]])
    mask = jnp.array([[True, True, False], [True, False, False]])
    assert losses.masked_mean(values, mask) == pytest.approx(2.0)
    assert losses.masked_mean(values, jnp.zeros_like(mask)) == 0.0


def test_stored_top_ids_leave_the_rest_as_one_event():
    p = np.array([0.5, 0.3, 0.2])
    log_q = jnp.log(jnp.array([0.4, 0.4, 0.2]))
    rows = TopRows(np.array([0]), np.log(p[:1]))
    merged_p, merged_q = merged_log_probs(rows, log_q)
    np.testing.assert_allclose(jnp.exp(merged_p), [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(merged_q), [0.4, 0.6], rtol=1e-6)
    full = losses.total_variation(jnp.log(p), log_q)
    assert losses.total_variation(merged_p, merged_q) <= full + 1e-6


def test_stages_follow_one_another():
    objective = Objective(
        (Stage(until=0.4, forward_kl=1.0), Stage(tvd=1.0, forward_kl=0.2)), target="t"
    )
    assert objective.weights_at(39, 100) == LossWeights(0.0, 1.0, 0.0)
    assert objective.weights_at(40, 100) == LossWeights(0.0, 0.2, 1.0)
    with pytest.raises(ValueError, match="without a target"):
        Objective((Stage(tvd=1.0),))
    with pytest.raises(ValueError, match=r"end at \[0\.4\]"):
        Objective((Stage(until=0.4, tvd=1.0),), target="t")


def test_schedule_by_hand():
    schedule = Schedule(peak=1e-2, warmup=100, timescale=400)
    for step, rate in ((50, 5e-3), (100, 1e-2), (400, 1e-2), (1600, 5e-3)):
        assert schedule.rate(step - 1, 10_000) == pytest.approx(rate)
    cooling = Schedule(peak=1e-2, warmup=0, timescale=10_000, cooldown=0.25)
    for step, rate in ((1, 1e-2), (1200, 1e-2), (1400, 5e-3), (1600, 0.0)):
        assert cooling.rate(step - 1, 1600) == pytest.approx(rate)
