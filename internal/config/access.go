package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// access reads the settings of requests to a Source: a login or a token, header fields, and
// the certificate authorities.
func (t table) access(s *Source, local bool) {
	t.login("user", "password")
	s.Headers = t.headers()
	if local {
		for _, key := range t.among("user token token_file headers ca_file timeout") {
			t.report(key, "is of no use with a local file; leave it out")
		}
		return
	}
	tokenKey := "token"
	if t.has("token_file") {
		tokenKey = "token_file"
	}
	switch has := s.Headers["Authorization"].text != ""; {
	case s.Token.text != "" && !t.empty("user"):
		t.report(tokenKey, "goes without user and password: a request has one Authorization; write one of the two")
	case has && (s.Token.text != "" || !t.empty("user")):
		t.report("headers", "has Authorization, which user or token makes as well; write one of them")
	case s.Token.text != "" && strings.ContainsFunc(s.Token.text, func(r rune) bool { return r <= ' ' || r > '~' }):
		t.report(tokenKey, "the token has a space, or a character that is not ASCII, and no request can carry it so; write the token alone, without Bearer")
	}
	if t.has("ca_file") {
		var err error
		if s.CA, err = t.authorities(s.URL); err != nil {
			t.report("ca_file", "%v", err)
		}
	}
}

// headerName is a token (RFC 9110 5.6.2).
var headerName = pattern.Of("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// ownHeader matches the header fields, in lower case, that bridge or HTTP sets, and those
// that would change the meaning of a response.
var ownHeader = pattern.Of(`^(host|content-.*|transfer-encoding|te|trailer|connection|keep-alive|upgrade|expect|range|if-.*|accept|accept-encoding|proxy-.*|http2-settings)$`)

// secretHeader matches the names of header fields whose values are usually secrets.
var secretHeader = pattern.Of(`(?i)auth|cookie|key|pass|secret|session|token`)

// headers reads the table headers. Its problems never show a value.
func (t table) headers() map[string]Secret {
	const example = `headers = { "X-Api-Key" = "file:source.key" }`
	values, _ := typed[map[string]any](t, "headers", "a table: "+example)
	in := t.inside("headers", values)
	var all map[string]Secret
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text, ok := typed[string](in, name, "a string, as in "+example)
		if !ok {
			continue
		}
		value, err := t.doc.headerValue(name, text)
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !headerName().MatchString(name):
			in.report(name, "is not a name of a header field; write letters, digits and -, like X-Api-Key")
		case ownHeader().MatchString(strings.ToLower(name)):
			in.report(name, "is set by bridge itself, or by HTTP; leave it out")
		case all[canonical].text != "":
			in.report(name, "appears twice; write it once")
		case err != nil:
			in.report(name, "%v", err)
		default:
			if all == nil {
				all = map[string]Secret{}
			}
			all[canonical] = value
		}
	}
	return all
}

// headerValue returns the value of a header field: the text, or what it refers to.
func (d *document) headerValue(name, text string) (value Secret, err error) {
	path, isFile := strings.CutPrefix(text, "file:")
	switch {
	case environment().MatchString(text):
		value, err = d.orUnread(fromEnvironment(text))
	case isFile, strings.HasPrefix(text, "credential:"):
		value, err = d.orUnread(d.secretFile(path))
	case text == "":
		err = errors.New(`is empty; write its value, "${NAME}", "file:path" or "credential:NAME", or leave it out`)
	case strings.Contains(text, "${"):
		err = errors.New(`has a variable among other text; write "${NAME}" alone, and the whole value into the variable`)
	default:
		value = Secret{text}
		if secretHeader().MatchString(name) {
			d.noteExposed(filepath.Join(d.folder, filepath.Base(d.file)))
		}
	}
	if err == nil && strings.ContainsFunc(value.text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		err = errors.New("the value has a character that no header field may have, such as a line break")
	}
	return value, err
}

// authorities reads ca_file, the authorities of a server's certificate.
func (t table) authorities(server string) ([]byte, error) {
	path, ok := typed[string](t, "ca_file", `a string: ca_file = "path"`)
	switch {
	case !ok:
		return nil, nil
	case path == "":
		return nil, errors.New(`is empty; write ca_file = "path", or leave it out`)
	case strings.HasPrefix(server, "http:"):
		return nil, errors.New("is of no use where the url begins with http:; write https, or leave this out")
	}
	data, err := os.ReadFile(t.doc.path(path))
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
		err = fmt.Errorf("%s has no certificate in PEM; write the file of the authority's, which begins with -----BEGIN CERTIFICATE-----", path)
	}
	return data, err
}
