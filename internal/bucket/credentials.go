package bucket

import (
	"errors"
	"fmt"
	"strings"

	lib "github.com/minio/minio-go/v7/pkg/credentials"
)

// newCredentials returns the credentials that the environment has, else the shared
// credentials file, else the machine's role if that is asked too. They are read at first use
// and renewed when they expire.
func newCredentials(role bool) *lib.Credentials {
	c := &chain{providers: []lib.Provider{&lib.EnvAWS{}, &lib.FileAWSCredentials{}}}
	if role {
		c.providers = append(c.providers, &lib.IAM{})
	}
	return lib.New(c)
}

// chain is the first of several providers that has credentials. Unlike the library's own it
// says why there are none, where that one goes on without a signature.
type chain struct {
	providers []lib.Provider
	found     lib.Provider
}

// noCredentialsError says for each provider why it has none.
type noCredentialsError struct{ error }

// RetrieveWithCredContext implements lib.Provider.
func (c *chain) RetrieveWithCredContext(cc *lib.CredContext) (lib.Value, error) {
	var missing []string
	for i, p := range c.providers {
		from := [...]string{"environment", "file", "role of the machine"}[i]
		v, err := p.RetrieveWithCredContext(cc)
		switch {
		case err != nil:
		case v.AccessKeyID == "" && v.SecretAccessKey == "":
			err = errors.New("has none")
		case v.AccessKeyID == "" || v.SecretAccessKey == "":
			err = errors.New("has only one of access key and secret key")
		default:
			c.found = p
			return v, nil
		}
		missing = append(missing, fmt.Sprintf("%s: %v", from, err))
	}
	return lib.Value{}, &noCredentialsError{errors.New(strings.Join(missing, "; "))}
}

// Retrieve implements lib.Provider.
func (c *chain) Retrieve() (lib.Value, error) { return c.RetrieveWithCredContext(nil) }

// IsExpired implements lib.Provider.
func (c *chain) IsExpired() bool { return c.found == nil || c.found.IsExpired() }
