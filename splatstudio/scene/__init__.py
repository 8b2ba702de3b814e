"""Scenes: what was photographed, from where, with which lens; files in, one frozen `Scene` out."""

from splatstudio.scene.capture import View
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.images import PhotoLoader
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.scene.photo import Photo
from splatstudio.scene.scene import Scene

__all__ = ["Photo", "PhotoLoader", "Scene", "View", "describe_scene", "load_scene", "load_training_scene"]
