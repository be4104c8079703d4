"""A few lines for libraries that choose devices themselves; nothing is imported before it is used.

Trainer, accelerate and Lightning know no simulated devices: unasked, they take a model to the CPU.
And whatever the devices, they take a dispersed model to one of them.
"""

from __future__ import annotations

import base64
import os
import sys
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import nn

from managed._allocators import (
    cupy_allocator,
    numba_memory_manager,
    rmm_callback,
    rmm_resource,
)

__all__ = [
    "cupy_allocator",
    "lightning_generator",
    "lightning_strategy",
    "numba_memory_manager",
    "rmm_callback",
    "rmm_resource",
    "stay",
    "trainer_generator",
]

Model = TypeVar("Model", bound=nn.Module)


def stay(model: Model) -> Model:
    """Lets transformers' Trainer and accelerate leave the model where it is; returns it.

    Call it when the model is in its place, and before TrainingArguments or an Accelerator is made.
    They find the device of the first parameter in ACCELERATE_TORCH_DEVICE, and in `hf_device_map`
    that the model has its devices already. The loss of a forward pass, which Trainer wants on its
    own device, is brought there. A model on the CPU is left as it is.
    """
    homes = {n: str(p.device) for n, p in model.named_parameters() if p.device.type != "cpu"}
    if homes:
        os.environ["ACCELERATE_TORCH_DEVICE"] = next(iter(homes.values()))
        vars(model)["hf_device_map"] = homes
        if _bring_loss not in model._forward_hooks.values():
            model.register_forward_hook(_bring_loss)
    return model


def _bring_loss(model: nn.Module, inputs: Any, output: Any) -> Any:
    loss = output.get("loss") if isinstance(output, dict) else None
    if isinstance(loss, torch.Tensor):
        output["loss"] = loss.to(next(iter(vars(model)["hf_device_map"].values())))
    return output


# ---- the generator of the accelerators, which is the first one's


def _devices() -> Any:
    module: Any = getattr(torch, "sim", torch.cuda)
    return module if module.is_available() else None


def _state() -> torch.Tensor | None:
    module = _devices()
    return None if module is None else module.get_rng_state(0)


def _set_state(state: torch.Tensor | None) -> None:
    module = _devices()
    if module is not None and state is not None:
        module.set_rng_state(state.cpu(), 0)


def trainer_generator() -> Any:
    """A callback for transformers' Trainer: resumed runs draw on where the checkpoint was made.

    Trainer saves the generators of the CPU and of CUDA devices; this one saves what simulated
    devices draw from, in the checkpoint's trainer_state.json.
    """
    callbacks = import_module("transformers.trainer_callback")

    class ManagedGenerator(callbacks.TrainerCallback, callbacks.ExportableState):  # type: ignore[misc,name-defined]
        resumed = False

        def state(self) -> dict[str, Any]:
            now = _state()
            kept = None if now is None else base64.b64encode(bytes(now.tolist())).decode()
            return {"args": {}, "attributes": {"generator": kept}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.resumed = state.global_step > 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not self.resumed:  # the first step comes after whatever else is restored
                return
            self.resumed = False
            found = state.stateful_callbacks.get(type(self).__name__) or {}
            kept = found.get("attributes", {}).get("generator")
            if kept:
                _set_state(torch.tensor(list(base64.b64decode(kept)), dtype=torch.uint8))

    return ManagedGenerator()


def _lightning(part: str) -> Any:
    """A module of the Lightning that the program uses, which comes under two names."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in (n for n in names if n in sys.modules):
        return import_module(f"{name}.{part}")
    try:
        return import_module(f"{names[0]}.{part}")
    except ImportError:
        return import_module(f"{names[1]}.{part}")


def lightning_generator() -> Any:
    """A callback for Lightning's Trainer, as `trainer_generator`; Lightning saves no generator."""

    class ManagedGenerator(_lightning("callbacks").Callback):  # type: ignore[misc]
        kept: torch.Tensor | None = None

        def state_dict(self) -> dict[str, Any]:
            return {"generator": _state()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.kept = state_dict["generator"]

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            _set_state(self.kept)
            self.kept = None

    return ManagedGenerator()


def lightning_strategy() -> Any:
    """`Trainer(strategy=lightning_strategy())` trains a LightningModule on the devices it is on."""
    base = _lightning("accelerators").Accelerator

    class Devices(base):  # type: ignore[misc,valid-type]
        """Whatever the model is on."""

        def setup_device(self, device: torch.device) -> None: ...

        def teardown(self) -> None: ...

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [torch.device("cpu")]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "managed"

    class InPlace(_lightning("strategies").SingleDeviceStrategy):  # type: ignore[misc]
        @property
        def root_device(self) -> torch.device:
            """Where batches go, and what is made: to the first parameter."""
            first = next(iter(self.lightning_module.parameters()), None) if self.model else None
            return torch.device("cpu") if first is None else first.device

        def model_to_device(self) -> None: ...

        def load_optimizer_state_dict(self, checkpoint: Any) -> None:
            states = checkpoint["optimizer_states"]
            for optimizer, state in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(state)  # torch sends it to the parameters

        def teardown(self) -> None:  # Lightning's takes the model to the CPU
            for part in (self.precision_plugin, self.accelerator, self.checkpoint_io):
                part.teardown()

    return InPlace(accelerator=Devices())
