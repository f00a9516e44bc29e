"""slmguard keeps a local language-model server alive on a small board."""

__version__ = "0.1.0"
