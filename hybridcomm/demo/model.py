"""A small character-level GPT."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .settings import ModelShape


class Block(nn.Module):
    """One transformer block: causal attention, then an MLP, each on a normalised residual.

    Args:
        width: Features per character.
        heads: Attention heads; divides `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the block.

        Args:
            x: Activations [batch, characters, width].

        Returns:
            Activations of the same shape.
        """
        batch, characters, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(
            batch, characters, 3, self.heads, -1
        )
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, characters, width))
        y: Tensor = x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return y


class CharacterGPT(nn.Module):
    """Predicts each next character from those before it.

    Weights start as in GPT-2 (Radford et al., 2019): normal with deviation 0.02, and smaller by
    the square root of their number for the layers that write into the residual stream.

    Args:
        vocabulary: Number of distinct characters.
        shape: Width, heads, layers and context.
    """

    def __init__(self, vocabulary: int, shape: ModelShape) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes_residual = name.endswith(("attention_out.weight", "mlp_out.weight"))
                scale = (2 * shape.layers) ** -0.5 if writes_residual else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, windows: Tensor) -> Tensor:
        """Computes the mean loss of predicting each character of the windows from those before.

        Args:
            windows: Character numbers [batch, characters + 1], int64, at most the context + 1.

        Returns:
            Mean cross-entropy in nats per character, a scalar.
        """
        given, wanted = windows[:, :-1], windows[:, 1:]
        x = self.characters(given) + self.places.weight[: given.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def parameter_count(model: nn.Module) -> int:
    """Counts a model's parameters.

    Args:
        model: Any module.

    Returns:
        The number of elements of all its parameters.
    """
    return sum(parameter.numel() for parameter in model.parameters())
