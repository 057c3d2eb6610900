from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")

from agentrl.rehearse.standins.tensors import FlattenedTensorBucket, MultiprocessingSerializer  # noqa: E402


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return [
        ("norm", torch.randn(5, generator=generator).to(torch.bfloat16)),
        ("flag", torch.tensor([True])),
        ("weight", torch.randn(3, 4, generator=generator).t()),  # not contiguous
        ("scalar", torch.tensor(7)),
        ("empty", torch.empty(0, 3)),
    ]


def same(left, right):
    assert [name for name, _ in left] == [name for name, _ in right]
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a, b)


def test_a_bucket_goes_to_the_engine_and_back(weights):
    bucket = FlattenedTensorBucket(named_tensors=weights)
    text = MultiprocessingSerializer.serialize(
        {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}, output_str=True
    )
    assert isinstance(text, str)
    same(FlattenedTensorBucket(**MultiprocessingSerializer.deserialize(text)).reconstruct_tensors(), weights)


def test_tensors_without_a_bucket(weights):
    data = MultiprocessingSerializer.serialize(weights)
    same([tuple(pair) for pair in MultiprocessingSerializer.deserialize(data)], weights)


def test_the_copies_do_not_share_the_buckets_memory(weights):
    bucket = FlattenedTensorBucket(named_tensors=weights)
    before = [(name, tensor.clone()) for name, tensor in bucket.reconstruct_tensors()]
    result = bucket.reconstruct_tensors()
    bucket.get_flattened_tensor().zero_()
    same(result, before)


@pytest.mark.parametrize("arguments", [{}, {"named_tensors": []}, {"flattened_tensor": torch.empty(1)}])
def test_a_bucket_needs_tensors(arguments):
    with pytest.raises(ValueError, match="a bucket needs"):
        FlattenedTensorBucket(**arguments)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_other_classes_are_not_read(capsys):
    data = MultiprocessingSerializer.serialize({"flattened_tensor": Evil()})
    with pytest.raises(pickle.UnpicklingError):
        MultiprocessingSerializer.deserialize(data)
    assert capsys.readouterr().out == ""
