package strictxml

import "testing"

// D17: an IRI is checked whole, not by its scheme alone.
func TestIsIRI(t *testing.T) {
	for s, want := range map[string]bool{
		"urn:uuid:1225c695-cfb8-4ebb-aaaa-80da344efa6a":  true,
		"https://a.example":                              true,
		"https://user:pw@a.example:8080/a/b;c=1?d=e/?#f": true,
		"http://[2001:db8::1]:80/":                       true,
		"http://[2001:db8::1]x/":                         false,
		"https://a.example/%C3%A9":                       true,
		"https://a.example/%C":                           false,
		"https://a.example/%zz":                          false,
		"https://żółw.example/日本":                        true,
		"tag:a.example,2020:x":                           true,
		"x:":                                             true,
		"":                                               false,
		"relative/path":                                  false,
		"//a.example/":                                   false,
		"Post: my first one":                             false,
		"urn:a b":                                        false,
		"urn:<a>":                                        false,
		"urn:a#b#c":                                      false,
		"urn:a[1]":                                       false,
		"urn:a|b":                                        false,
		"urn:a\nb":                                       false,
		"urn:a\\b":                                       false,
		"urn:\u0085":                                     false,
		"urn:a?\ue000":                                   true,
		"urn:\ue000":                                     false,
		"urn:\ufffe":                                     false,
		"urn:\xff":                                       false,
		"http://a.example:80a/":                          false,
		"1urn:a":                                         false,
	} {
		if got := IsIRI(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}
