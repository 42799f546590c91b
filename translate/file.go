package translate

import (
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

// File is what is known of a file that is a representation of a record.
type File struct {
	// Href is its place in the folder: "file:" and the path relative to the folder,
	// escaped. So nothing that is said of the record depends on where the folder is.
	Href string
	// Type is its media type, Namespace that of the root element of one in XML.
	Type, Namespace string
	// Length is in bytes; Hash is "" where it is not known yet.
	Length int64
	Hash   string
	// Modified is when the file was last modified.
	Modified event.Stamp
	// Content is the whole content of a file in XML, for the record's title; nil where it
	// is not at hand.
	Content []byte
}

// FilesOf is what the Href of each file begins with, in place of the folder's URL, for
// Selection.LocalURL.
const FilesOf = "file:"

// FromFiles translates the files of one record into an observation. id is its
// identifier, which Selection.Prefixes select by, since a file need not have a URL.
// Files have no order, so Order is unknown. The errors are ErrUnselected and
// event.ErrTooMuch, and ErrLocal where no file is published.
func FromFiles(id string, files []File, sel *Selection) (event.Observation, error) {
	var o event.Observation
	o.Record, o.SourceIdentifier = sel.Identifier(id)
	t := taking{sel: sel, o: &o}
	for i := range files {
		f := &files[i]
		if f.Modified.After(o.Modified) {
			o.Modified = f.Modified
		}
		if o.Title == "" && f.Content != nil {
			o.Title = firstTitle(f.Content, true)
		}
		t.take(event.Representation{Href: f.Href, Type: f.Type, Length: f.Length, Hash: f.Hash, Profile: profile(f.Namespace)})
	}
	if err := t.finish(); err != nil {
		return o, err
	}
	if p := preferredProfile(&o); p != "" {
		o.Links = append(o.Links, event.Link{Rel: event.RelProfile, Href: p, Length: event.NoLength})
	}
	return o, sel.accept(&o, id)
}

// preferredProfile returns the namespace of the representation that stands for the
// record.
func preferredProfile(o *event.Observation) string {
	if o.Deleted || len(o.Representations) == 0 {
		return ""
	}
	return o.Representations[o.Preferred].Profile
}

// typesOfRoots are the media types of documents in XML by the namespace of their root
// element.
var typesOfRoots = map[string]string{
	"http://www.w3.org/2005/Atom":                 "application/atom+xml",
	"http://www.w3.org/1999/02/22-rdf-syntax-ns#": "application/rdf+xml",
	"http://www.w3.org/1999/xhtml":                "application/xhtml+xml",
	"http://www.w3.org/2000/svg":                  "image/svg+xml",
}

// TypeOfRoot returns the media type of a document in XML whose root element is in a
// namespace. Where no type is known of that, it is application/xml, and the namespace,
// which becomes the profile of the representation, says what the document is.
func TypeOfRoot(namespace string) string {
	if t := typesOfRoots[strings.TrimSpace(namespace)]; t != "" {
		return t
	}
	return "application/xml"
}
