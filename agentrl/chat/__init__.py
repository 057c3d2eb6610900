"""Chat messages: clients of chat models, the vendors' wire formats, and messages written as exact tokens."""

from agentrl.chat.client import ChatModel, ScriptedSpeaker, Speaker, SpeakerConfig, Usage, speaker

__all__ = ["ChatModel", "ScriptedSpeaker", "Speaker", "SpeakerConfig", "Usage", "speaker"]
