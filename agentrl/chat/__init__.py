"""Chat messages: models that are asked with them, the vendors' wires, and messages as exact tokens."""

from agentrl.chat.client import ChatModel, ScriptedSpeaker, Speaker, SpeakerConfig, Usage, speaker

__all__ = ["ChatModel", "ScriptedSpeaker", "Speaker", "SpeakerConfig", "Usage", "speaker"]
