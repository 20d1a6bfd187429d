package httpapi

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/ratelog"
)

// Exchange is one request and its answer. One goroutine may use it.
type Exchange struct {
	// Request is the request. Its body is read by Decode, and its context is not that of calls.
	Request *http.Request
	// ID is the request id: the client's, or a new one.
	ID string

	server  *Server
	dialect Dialect
	out     *writer
	ctx     context.Context
	cancel  []context.CancelFunc
	held    int64 // bytes of the body that count in server.held
	skipped []string
	failed  func(f *Failure) []byte // see EndWith
	fields  []any                   // of the log line
	body    [sha256.Size]byte       // hash of the body
}

// SkippedHeader names the fields of a request that were accepted and have no effect.
const SkippedHeader = "Millrace-Skipped"

// maxSkipped bounds the fields that are named.
const maxSkipped = 32

// MaxTimeout is the longest deadline that a request may ask for.
const MaxTimeout = 24 * time.Hour

// Context returns the context of the request's calls. It ends when the client leaves, at the
// deadline, and when the gateway cuts off what still runs.
func (x *Exchange) Context() context.Context { return x.ctx }

// SetTimeout gives the request a deadline in addition to that of its header. The earlier one
// counts. A value that is not a number of seconds in (0, 24 h] is refused, named by param.
func (x *Exchange) SetTimeout(seconds float64, param string) error {
	if math.IsNaN(seconds) || seconds <= 0 || seconds > MaxTimeout.Seconds() {
		return Invalid(param, "is %v: must be a number of seconds above 0 and at most %v", seconds, MaxTimeout.Seconds())
	}
	x.setTimeout(time.Duration(seconds * float64(time.Second)))
	return nil
}

func (x *Exchange) setTimeout(d time.Duration) {
	ctx, cancel := context.WithTimeout(x.ctx, d)
	x.ctx, x.cancel = ctx, append(x.cancel, cancel)
}

// SetRoutingKey gives the request's calls a routing key. A key of the header
// millrace-routing-key counts before it.
func (x *Exchange) SetRoutingKey(key string) {
	if x.Request.Header.Get(routingHeader) == "" {
		x.ctx = target.WithRoutingKey(x.ctx, key)
	}
}

// Decode decodes the body into the struct that out points to, see package strictjson. skip reports
// whether an unknown field is skipped, because clients of the dialect send it to every server; nil
// skips none.
func (x *Exchange) Decode(out any, skip func(path string) bool) error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	x.body = sha256.Sum256(body)
	return strictjson.Decode(body, out, func(path string) bool {
		if skip == nil || x.server.cfg.Strict || !skip(path) {
			return false
		}
		x.skipped = append(x.skipped, path)
		return true
	})
}

// Skip records that a field of the request has no effect, and names it in a header of the answer.
// In strict mode it returns an error.
func (x *Exchange) Skip(param string) error {
	if x.server.cfg.Strict {
		return Unsupported(param, "has no effect here, and this gateway refuses such fields (--strict): leave it out")
	}
	x.skipped = append(x.skipped, param)
	return nil
}

// StreamKey returns a key for the ids of the answer's events. Gateways with the same Config.StreamKey
// have the same one for the same path, token and body, so that an id is worth nothing to another
// client or for another request. Call it after Decode.
func (x *Exchange) StreamKey() []byte {
	mac := hmac.New(sha256.New, x.server.cfg.StreamKey)
	token := sha256.Sum256([]byte(authorization(x.Request)))
	for _, part := range [][]byte{[]byte("millrace event ids\x00"), token[:], x.body[:], []byte(x.Request.URL.Path)} {
		_, _ = mac.Write(part) // never fails
	}
	return mac.Sum(nil)
}

// Header returns the headers of the response. They are sent with its first byte.
func (x *Exchange) Header() http.Header { return x.out.Header() }

// EndWith replaces the dialect's ErrorEvent for this request, because the event depends on what was
// written before it.
func (x *Exchange) EndWith(event func(f *Failure) []byte) { x.failed = event }

// Annotate adds a field to the request's log line. Texts are clipped.
func (x *Exchange) Annotate(key string, value any) {
	if text, ok := value.(string); ok {
		value = ratelog.Clip(text)
	}
	x.fields = append(x.fields, key, value)
}

// WriteJSON writes the whole answer.
func (x *Exchange) WriteJSON(v any) error {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return x.respond(http.StatusOK, "application/json", body.Bytes())
}

// respond writes a whole response.
func (x *Exchange) respond(status int, contentType string, body []byte) error {
	x.begin(status, contentType)
	x.out.Header().Set("Content-Length", strconv.Itoa(len(body)))
	return x.out.writeAll(body)
}

// begin sets the headers of the response. Nothing of the request's body is needed any more.
func (x *Exchange) begin(status int, contentType string) {
	x.release()
	head := x.out.Header()
	head.Set("Content-Type", contentType)
	if n := len(x.skipped); n > 0 {
		head.Set(SkippedHeader, headerText(strings.Join(x.skipped[:min(n, maxSkipped)], ", ")))
	}
	x.out.status = status
}

// headerText makes a text fit a header.
func headerText(text string) string {
	text = ratelog.Clip(text)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// release subtracts the body's bytes from the held ones.
func (x *Exchange) release() {
	x.server.held.Add(-x.held)
	x.held = 0
}

// end ends the request.
func (x *Exchange) end() {
	x.release()
	x.out.end()
	for _, cancel := range x.cancel {
		cancel()
	}
}
