"""Chat messages: clients of chat models, the vendors' API formats (wires), and the encoding of messages as exact
tokens."""

from agentrl.chat.client import ChatModel, ScriptedSpeaker, Speaker, SpeakerConfig, Usage, speaker

__all__ = ["ChatModel", "ScriptedSpeaker", "Speaker", "SpeakerConfig", "Usage", "speaker"]
