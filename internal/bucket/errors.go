package bucket

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
)

var (
	// ErrAway means that the server cannot be reached, is too busy or broken, or broke off.
	// The same call may succeed later.
	ErrAway = errors.New("the S3 server is not available")
	// ErrRefused means that the server does not let us, or is not one that we can use:
	// credentials, permissions, the clock, the region, a bucket that does not exist. Someone
	// has to act.
	ErrRefused = errors.New("access refused")
)

// action is what a call does with an object, for its errors.
type action string

const (
	listing  action = "list"
	reading  action = "read"
	writing  action = "write"
	removing action = "remove"
)

// permission returns what a policy calls the action.
func (a action) permission() string {
	switch a {
	case listing:
		return "s3:ListBucket"
	case reading:
		return "s3:GetObject"
	case removing:
		return "s3:DeleteObject"
	}
	return "s3:PutObject and s3:AbortMultipartUpload"
}

// temporary are the codes of answers after which the same call may succeed. An upload that
// is unknown was completed or aborted by a call whose answer got lost, and bytes that do not
// match their checksum were damaged on the way.
var temporary = []string{
	"BadDigest", "IncompleteBody", "InternalError", "NoSuchUpload", "OperationAborted", "RequestTimeout",
	"ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite", "XAmzContentSHA256Mismatch",
}

// fail returns the error of a call for what went wrong in it. A cause is told in words: an
// error of ours must not look like the end of a caller's context because a connection timed
// out.
func (b *Bucket) fail(ctx context.Context, do action, key string, err error) error {
	failed := func(kind error, format string, args ...any) error {
		return fmt.Errorf("%s: cannot %s %q: %w: %s", b.address, do, key, kind, fmt.Sprintf(format, args...))
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%s: cannot %s %q: %w", b.address, do, key, ended)
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		var (
			request     *url.Error
			certificate *tls.CertificateVerificationError
			missing     *noCredentialsError
		)
		switch {
		case errors.As(err, &missing):
			return failed(ErrRefused, "there are no credentials; %s (%v)", credentials, missing)
		case errors.As(err, &certificate):
			return failed(ErrRefused, "its certificate is not valid; correct the endpoint, or name the authority's certificate with SSL_CERT_FILE (%v)", certificate)
		case errors.Is(err, http.ErrSchemeMismatch):
			return failed(ErrRefused, "it speaks http, not https; write endpoint=http://...")
		case errors.As(err, &request):
			err = request.Err // without the URL
		}
		return failed(ErrAway, "%v", err)
	}
	said := answer.Code
	if answer.Message != "" {
		said += fmt.Sprintf(", %.300q", answer.Message)
	}
	switch answer.Code {
	case "NoSuchKey", "NoSuchBucket":
		// The library takes any 404 for one of them, also that of a proxy without a server.
		if answer.XMLName.Local == "" {
			return failed(ErrAway, "it answers 404 and not in the words of S3; if that stays, correct the endpoint")
		}
		if answer.Code == "NoSuchKey" {
			return fmt.Errorf("%s: cannot %s %q: %w", b.address, do, key, fs.ErrNotExist)
		}
		return failed(ErrRefused, "there is no such bucket; create it, or correct its name (%s)", said)
	case "PreconditionFailed", "ConditionalRequestConflict":
		return failed(fs.ErrExist, "there is such an object already")
	case "AccessDenied", "AllAccessDisabled", "AccountProblem":
		return failed(ErrRefused, "the credentials do not permit it; allow them %s (%s)", do.permission(), said)
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return failed(ErrRefused, "it does not know the access key; correct AWS_ACCESS_KEY_ID or the profile (%s)", said)
	case "SignatureDoesNotMatch":
		return failed(ErrRefused, "the signature is wrong; correct AWS_SECRET_ACCESS_KEY or the profile (%s)", said)
	case "RequestTimeTooSkewed":
		return failed(ErrRefused, "the clock of this machine and that of the server differ too much; set the one that is wrong (%s)", said)
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired":
		return failed(ErrRefused, "the session token has expired or is wrong; renew AWS_SESSION_TOKEN or the profile (%s)", said)
	case "AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "IllegalLocationConstraintException", "IncorrectEndpoint":
		region := "the region of the bucket"
		if answer.Region != "" {
			region = answer.Region
		}
		return failed(ErrRefused, "the region or the endpoint is wrong; write region=%s (%s)", strings.ReplaceAll(region, "\n", " "), said)
	}
	switch status := answer.StatusCode; {
	case slices.Contains(temporary, answer.Code), status == http.StatusRequestTimeout, status == http.StatusTooManyRequests,
		status >= 500 && status != http.StatusNotImplemented:
		return failed(ErrAway, "%s", said)
	}
	return failed(ErrRefused, "%s", said)
}
