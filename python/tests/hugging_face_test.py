"""gpipe.hugging_face: models of transformers as layers."""

import copy
import json
import pathlib
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from gpipe import GPipe, hugging_face  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks  # noqa: E402


def gpt2(**settings):
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=3, n_head=2, **settings
    )
    return transformers.GPT2LMHeadModel(config)


def llama(**settings):
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, **settings
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_of_the_whole_model(make, tied):
    model = make(tie_word_embeddings=tied).eval()
    ids = torch.randint(64, (4, 12))
    whole = model(ids).logits
    layers = hugging_face.layers(model)
    assert len(layers) == 5 and torch.equal(layers(ids), whole)
    pipe = GPipe(layers, [2, 3], chunks=2)
    assert torch.allclose(pipe(ids), whole, atol=1e-6)

    loss = model(ids, labels=ids).loss
    loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    result = pipe.step(ids, ids, hugging_face.next_token_loss)
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for parameter, gradient in zip(model.parameters(), expected):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)
    assert layers[0].tokens.weight is model.get_input_embeddings().weight
    assert (layers[-1].head.weight is layers[0].tokens.weight) == tied


def test_training_trains_the_model(tmp_path):
    model = gpt2().train()
    layers = hugging_face.layers(model)
    pipe = GPipe(layers, [2, 3], chunks=2)
    assert pipe.training and layers[0].dropout.training
    ids = torch.arange(12).expand(4, 12).contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        losses.append(pipe.step(ids, ids, hugging_face.next_token_loss).loss)
        optimizer.step()
    assert losses[-1] < losses[0] / 2
    model.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)


def test_what_is_refused():
    with pytest.raises(TypeError, match="a Linear into layers"):
        hugging_face.layers(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        hugging_face.layers(gpt2(attn_implementation="eager"))
    model = llama()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
        hugging_face.layers(model)
    with pytest.raises(ValueError, match="cross-attention"):
        hugging_face.layers(gpt2(add_cross_attention=True))
    hugging_face.layers(copy.deepcopy(llama()))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_over_processes(tmp_path, name, tied):
    """The losses and all parameters are those of one process, whatever the cut."""
    program = f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import hugging_face_test
from gpipe import hugging_face
world = gpipe.World.from_environment(announce=False, silence_limit=20, call_limit=60)
rank = world.rank
torch.manual_seed(3)
whole = hugging_face_test.{name}(tie_word_embeddings={tied}).train()
pipe = GPipe(hugging_face.layers(whole), balance, chunks=2, world=world, cpu_threads_per_stage=1)
optimizer = torch.optim.AdamW(pipe.local_parameters(), lr=1e-2)
ids = torch.randint(64, (4, 12), generator=torch.Generator().manual_seed(5))
torch.manual_seed(6)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    losses.append(pipe.step(ids if pipe.is_here(0) else None, ids, hugging_face.next_token_loss).loss)
    pipe.clip_grad_norm_(1.0)
    optimizer.step()
tell(losses=losses, hash=pipe.parameter_hash())
"""
    results = []
    for balance in ([5], [2, 3], [1, 2, 2]):
        folder = tmp_path / str(len(balance))
        folder.mkdir()
        started = ranks.Ranks(folder, f"balance = {balance}\n" + program, len(balance))
        assert started.wait() == [0] * len(balance), started.all_errors()
        results += [(folder / f"{rank}.json").read_text() for rank in range(len(balance))]
    assert all(result == results[0] for result in results)
    losses = json.loads(results[0])["losses"]
    assert losses[3] < losses[0]
