package config

import (
	"context"
	"slices"
)

// Renamed returns the configuration with another name for a set, wherever the name is used.
func (c *Config) Renamed(name, newName string) *Config {
	out := *c
	out.Sets = slices.Clone(c.Sets)
	for i := range out.Sets {
		s := &out.Sets[i]
		s.Sources, s.Submit = slices.Clone(s.Sources), slices.Clone(s.Submit)
		for j := range s.Sources {
			switch src := &s.Sources[j]; {
			case src.URL == memberURL+name:
				src.URL = memberURL + newName
			case s.Name == name && src.SIP != nil && src.URL == servicePath(name):
				src.URL = servicePath(newName)
			}
		}
		for j := range s.Submit {
			if s.Submit[j].ImportAcceptedTo == name {
				s.Submit[j].ImportAcceptedTo = newName
			}
		}
		if s.Name == name {
			s.Name = newName
		}
	}
	return &out
}

// IsSetName reports whether name is a valid name of a set.
func IsSetName(name string) bool { return setName().MatchString(name) }

// Edit opens the files of the configuration to be changed: see NewEdit.
func (c *Config) Edit(ctx context.Context) (*Edit, error) { return NewEdit(ctx, c.File, c.flags) }
