"""Scenes: what was photographed, from where, with which lens; files in, one frozen `Scene` out."""
