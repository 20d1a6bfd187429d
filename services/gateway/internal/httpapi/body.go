package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/reason"
)

// Limits of the reading of a body.
const (
	// smallBody is the size up to which bodies are not counted.
	smallBody = 32 << 10
	// bodyTimeout is the time for a body; every bodyRate bytes that have arrived give another
	// second.
	bodyTimeout = 20 * time.Second
	bodyRate    = 64 << 10
)

// readBody reads the whole body. Its buffer grows with the bytes that have arrived, not with the length
// that the client announces.
func (x *Exchange) readBody() ([]byte, error) {
	r, limit := x.Request, x.server.cfg.MaxBodyBytes
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		f := Refuse(codes.Unimplemented, "", "the body is compressed, and this server accepts no compression: send it uncompressed")
		f.Status = http.StatusUnsupportedMediaType
		return nil, f
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	control := http.NewResponseController(x.out)
	from := http.MaxBytesReader(x.out.ResponseWriter, r.Body, limit)
	size := int64(smallBody)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength+1) // so that the end is read without another buffer
	}
	body, begin := make([]byte, 0, size), time.Now()
	for {
		if len(body) == cap(body) {
			grown := min(2*int64(cap(body)), limit+1)
			if err := x.hold(grown - x.held); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, grown), body...)
		}
		// A deadline that cannot be set means that the connection is gone, and reading fails.
		_ = control.SetReadDeadline(begin.Add(bodyTimeout + time.Duration(len(body)/bodyRate)*time.Second))
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			_ = control.SetReadDeadline(time.Time{})
			return body, nil
		}
		if err != nil {
			return nil, x.unread(err, limit)
		}
	}
}

// hold counts bytes of the body.
func (x *Exchange) hold(bytes int64) error {
	all := x.server.held.Add(bytes)
	x.held += bytes
	if all <= x.server.cfg.MaxHeldBytes {
		return nil
	}
	x.release()
	f := Refuse(codes.ResourceExhausted, "", "the requests that the gateway holds leave no room for this one: try again later").
		because(reason.TooManyBytesWaiting)
	f.RetryAfter = defaultRetryAfter
	return f
}

// unread returns the failure of a body that could not be read.
func (x *Exchange) unread(err error, limit int64) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.out.Header().Set("Connection", "close") // the rest of the body is not read
		f := Refuse(codes.DeadlineExceeded, "", "the body did not arrive in time: send it at %d KiB a second or faster", bodyRate>>10).
			because(reason.SilentSender)
		f.Status = http.StatusRequestTimeout
		return f
	}
	return Refuse(codes.Canceled, "", "the client left before its request had arrived")
}

func tooLarge(limit int64) error {
	return Refuse(codes.ResourceExhausted, "", "the body has more than %d bytes: send less", limit).because(reason.MessageTooLarge)
}
