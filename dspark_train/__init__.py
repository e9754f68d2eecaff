"""Elastic, multi-node training of speculative-decoding drafts: inference and training as two pools that scale apart."""

__version__ = "0.1.0"
