"""Architectures of the package transformers, with small random configurations; nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from benchmarks.breadth.architecture import Architecture

_TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SEQ2SEQ = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_VISION = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
_STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 2, 1]}
_AUDIO = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (8, 8),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 40, (4, 8))}


def _pairs() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 40, (4, 8)), "decoder_input_ids": torch.randint(3, 40, (4, 6))}


def _pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(4, 3, 32, 32)}


def _waves() -> dict[str, Tensor]:
    return {"input_values": torch.randn(4, 640)}


def _builder(model_type: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        config = AutoConfig.for_model(model_type, **settings)
        for name in ("use_cache", "gradient_checkpointing"):
            if hasattr(config, name):
                setattr(config, name, False)
        model: nn.Module = AutoModel.from_config(config)
        return model

    return build


def _make(
    kind: str, base: dict[str, Any], example: Callable[[], Any], models: dict[str, dict[str, Any]]
) -> list[Architecture]:
    return [
        Architecture(name, kind, _builder(name.split(" ")[0], {**base, **extra}), example)
        for name, extra in models.items()
    ]


_GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32, "n_ctx": 32, "n_inner": 24}
_GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
_T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}

TRANSFORMERS = [
    *_make(
        "encoder",
        _TEXT,
        _tokens,
        {
            "bert": {},
            "roberta": {},
            "xlm-roberta": {},
            "camembert": {},
            "electra": {"embedding_size": 12},
            "albert": {"embedding_size": 12},
            "mpnet": {},
            "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
            "deberta-v2": {},
            "convbert": {"embedding_size": 16},
            "squeezebert": {"embedding_size": 16},
            "roformer": {"embedding_size": 16},
            "megatron-bert": {},
            "ernie": {},
            "rembert": {"input_embedding_size": 12, "output_embedding_size": 12},
            "layoutlm": {},
            "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 8},
            "modernbert": {"global_attn_every_n_layers": 2},
            "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24},
            "fnet": {},
        },
    ),
    *_make(
        "decoder",
        _TEXT,
        _tokens,
        {
            "gpt2": _GPT2,
            "gpt_neo": {"num_hidden_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
            "gptj": {**_GPT2, "rotary_dim": 4},
            "gpt_neox": {},
            "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
            "bloom": {"n_layer": 2, "n_head": 2},
            "llama": _GROUPED,
            "mistral": _GROUPED,
            "qwen2": _GROUPED,
            "gemma": _GROUPED,
            "phi": {},
            "stablelm": _GROUPED,
            "olmo": _GROUPED,
            "starcoder2": _GROUPED,
            "falcon": {"num_kv_heads": 1},
            "mixtral": {**_GROUPED, "num_local_experts": 2},
            "codegen": {**_GPT2, "rotary_dim": 4, "n_head": 4, "num_attention_heads": 4},
            "xglm": {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 24},
            "ctrl": {"n_embd": 16, "n_layer": 2, "n_head": 2, "dff": 24, "n_positions": 32},
        },
    ),
    *_make(
        "encoder-decoder",
        _SEQ2SEQ,
        _pairs,
        {
            "t5": _T5,
            "mt5": _T5,
            "bart": {},
            "mbart": {},
            "pegasus": {},
            "blenderbot": {},
            "marian": {},
            "m2m_100": {},
            "longt5": {**_T5, "local_radius": 3, "global_block_size": 4},
        },
    ),
    *_make(
        "vision transformer",
        _VISION,
        _pictures,
        {
            "vit": {},
            "deit": {},
            "beit": {},
            "dinov2": {},
            "data2vec-vision": {},
            "clip_vision_model": {},
            "poolformer": {**_STAGES, "num_encoder_blocks": 4},
            "segformer": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
            "pvt": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
        },
    ),
    *_make(
        "vision transformer",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
        _pictures,
        {"swin": {}, "swinv2": {}},
    ),
    *_make(
        "convolutional",
        {},
        _pictures,
        {
            "convnext": _STAGES,
            "convnextv2": _STAGES,
            "resnet": {"embedding_size": 8, **_STAGES, "layer_type": "basic"},
            "resnet with bottlenecks": {"embedding_size": 8, **_STAGES, "layer_type": "bottleneck"},
            "regnet": {"embedding_size": 8, **_STAGES, "groups_width": 8},
            "mobilenet_v1": {"depth_multiplier": 0.25, "min_depth": 8, "image_size": 32},
            "mobilenet_v2": {"depth_multiplier": 0.25, "min_depth": 8, "image_size": 32},
            "efficientnet": {
                "width_coefficient": 0.25,
                "depth_coefficient": 0.2,
                "image_size": 32,
                "hidden_dim": 320,
                "initializer_range": 0.2,  # with the usual one the gradient of so small a model vanishes
            },
            "bit": {"embedding_size": 8, **_STAGES, "num_groups": 4},
            "focalnet": {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16]},
        },
    ),
    *_make(
        "audio",
        _AUDIO,
        _waves,
        {
            "wav2vec2": {},
            "hubert": {},
            "wavlm": {},
            "unispeech": {},
            "sew": {"squeeze_factor": 2},
        },
    ),
    *_make(
        "audio",
        {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
        lambda: {"input_features": torch.randn(4, 8, 32), "decoder_input_ids": torch.randint(3, 40, (4, 6))},
        {"whisper": {}},
    ),
    *_make(
        "audio",
        {**_VISION, "num_mel_bins": 16, "max_length": 32, "patch_size": 8},
        lambda: {"input_values": torch.randn(4, 32, 16)},
        {"audio-spectrogram-transformer": {}},
    ),
    *_make(
        "state space",
        {**_TEXT, "state_size": 4, "expand": 2, "conv_kernel": 3},
        _tokens,
        {
            "mamba": {},
            "falcon_mamba": {},
            "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
            "rwkv": {"attention_hidden_size": 16, "context_length": 32},
            "recurrent_gemma": {**_GROUPED, "lru_width": 16, "attention_window_size": 4, "num_hidden_layers": 3},
        },
    ),
]
