"""vllm.lora.request and its LoRARequest: refused where they are imported."""

raise ImportError(f"{__name__}: LoRA adapters are not supported")
