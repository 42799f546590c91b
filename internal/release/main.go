// Command release writes the bill of materials of a bridge that make release has built, as
// CycloneDX 1.5 in JSON: the modules in it, with their versions.
//
//	release BINARY VERSION TIME >FILE
//
// It is made from what Go has recorded in the binary, so it describes that very file.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 3 {
		return errors.New("usage: release BINARY VERSION TIME")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(billOf(info, sha256.Sum256(binary), args[1], args[2]))
}

// The parts of a CycloneDX document that are written.
type (
	bill struct {
		BOMFormat    string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licenses   []license  `json:"licenses,omitempty"`
		PURL       string     `json:"purl"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	license struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// billOf returns the bill of materials of a binary with a hash.
func billOf(info *debug.BuildInfo, sum [sha256.Size]byte, version, at string) *bill {
	own := module(info.Main.Path, version)
	own.Type, own.Name = "application", "bridge"
	own.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	var apache license
	apache.License.ID = "Apache-2.0"
	own.Licenses = []license{apache}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" {
			own.Properties = append(own.Properties, property{"go:" + s.Key, s.Value})
		}
	}
	// The serial number is the same for each bill of the same file.
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	b := &bill{BOMFormat: "CycloneDX", SpecVersion: "1.5", Version: 1, Metadata: metadata{at, own},
		SerialNumber: fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])}
	b.Components = append(b.Components, module("std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		sum := m.Sum
		if m.Replace != nil {
			m, sum = m.Replace, m.Replace.Sum
		}
		c := module(m.Path, m.Version)
		if sum != "" {
			c.Properties = []property{{"go:sum", sum}}
		}
		b.Components = append(b.Components, c)
	}
	on := dependency{Ref: own.Ref}
	for _, c := range b.Components {
		on.DependsOn = append(on.DependsOn, c.Ref)
	}
	b.Dependencies = []dependency{on}
	return b
}

func module(path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}
