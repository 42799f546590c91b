package config

import _ "embed"

//go:embed template.toml
var template string

// Template returns the commented file that "bridge init" writes. It loads as it
// is, and has every key with its default.
func Template() string { return template }
