package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// hang bounds waits for events that come much sooner.
const hang = time.Minute

// dialect has one handler at POST /do, and errors that are "REASON PARAM".
type dialect struct {
	handle func(x *httpapi.Exchange) error
}

func (d *dialect) Routes() []httpapi.Route {
	return []httpapi.Route{{Pattern: "POST /do", Handle: d.handle}}
}
func (*dialect) ErrorBody(f *httpapi.Failure) []byte  { return []byte(f.Reason + " " + f.Param) }
func (*dialect) ErrorEvent(f *httpapi.Failure) []byte { return []byte("error: " + f.Reason) }

// ended is a request that an observer saw end.
type ended struct {
	route  string
	status int
	reason string
}

// observer records requests.
type observer chan ended

func (observer) Began(string) {}
func (o observer) Ended(route string, status int, f *httpapi.Failure, _ time.Duration) {
	e := ended{route: route, status: status}
	if f != nil {
		e.reason = f.Reason
	}
	o <- e
}

// server is a running server.
type server struct {
	url    string
	ended  observer
	signal context.CancelFunc // as a signal to the program
	done   chan error
}

// start serves a handler until the test ends.
func start(t *testing.T, change func(*httpapi.Config), handle func(x *httpapi.Exchange) error) *server {
	t.Helper()
	s := &server{ended: make(observer, 100), done: make(chan error, 1)}
	cfg := httpapi.Config{
		Dialects: []httpapi.Dialect{&dialect{handle}}, Ready: func(context.Context) error { return nil }, Observer: s.ended,
		MaxConnections: 100, MaxBodyBytes: 1 << 20, MaxHeldBytes: 4 << 20, SendStall: hang, DrainTimeout: hang,
	}
	if change != nil {
		change(&cfg)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s.url, s.signal = "http://"+lis.Addr().String(), cancel
	var once sync.Once
	go func() { s.done <- httpapi.New(cfg, rpctest.Logger(t)).Serve(ctx, lis) }()
	t.Cleanup(func() {
		once.Do(cancel)
		require.NoError(t, <-s.done)
	})
	return s
}

// do makes a request over HTTP/1.1, or HTTP/2 in plaintext. headers are names and values.
func (s *server) do(t *testing.T, h2 bool, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), method, s.url+path, body)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		in.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return (&http.Client{Transport: transport}).Do(in)
}

// call makes a request over HTTP/1.1 and returns the whole answer.
func (s *server) call(t *testing.T, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	out, err := s.do(t, false, method, path, strings.NewReader(body), headers...)
	require.NoError(t, err)
	text, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.NoError(t, out.Body.Close())
	return out, string(text)
}

func TestStatusesOfCodes(t *testing.T) {
	var err error
	s := start(t, nil, func(*httpapi.Exchange) error { return err })
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.Unimplemented: 400, codes.OutOfRange: 400, codes.FailedPrecondition: 400, codes.Unauthenticated: 401,
		codes.PermissionDenied: 403, codes.NotFound: 404, codes.ResourceExhausted: 429, codes.Unavailable: 503, codes.DeadlineExceeded: 504,
		codes.Canceled: 499, codes.Internal: 500, codes.DataLoss: 500, codes.Unknown: 500, codes.Aborted: 409, codes.AlreadyExists: 409,
	} {
		err = rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: "WHY", Message: "m"}.Err()
		out, text := s.call(t, http.MethodPost, "/do", "")
		require.Equal(t, want, out.StatusCode, code)
		require.Equal(t, "WHY ", text)
		require.Equal(t, code == codes.Unavailable, out.Header.Get("Retry-After") == "1", "time helps if a server is not available")
		require.Equal(t, want == 401, out.Header.Get("WWW-Authenticate") == "Bearer")
	}
	err = rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "WHY", Message: "m", RetryAfter: 1200 * time.Millisecond}.Err()
	out, _ := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, "2", out.Header.Get("Retry-After"))
	require.Equal(t, "1200", out.Header.Get("Retry-After-Ms"))
	err = rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.MessageTooLarge, Message: "m"}.Err()
	out, _ = s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, http.StatusRequestEntityTooLarge, out.StatusCode)
	err = errors.New("with a secret")
	out, text := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, http.StatusInternalServerError, out.StatusCode)
	require.Equal(t, "INTERNAL ", text)
}

func TestUnreachableServersAreNotNamed(t *testing.T) {
	retried := fmt.Errorf("max retries exhausted: %w", rpc.Error{Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: "R", Message: "text"}.Err())
	require.Equal(t, "text", httpapi.FailureOf(retried).Message)
	require.Equal(t, "R", httpapi.FailureOf(retried).Reason)
	conn, err := rpc.Dial("127.0.0.1:1", "test")
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	err = conn.Invoke(t.Context(), "/a/b", nil, nil)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, httpapi.FailureOf(err).Message, "127.0.0.1")
	require.Equal(t, "UNAVAILABLE", httpapi.FailureOf(err).Reason)
}

func TestErrorInMidStreamIsTheLastEvent(t *testing.T) {
	s := start(t, nil, func(x *httpapi.Exchange) error {
		out := x.Stream(httpapi.EventStream)
		if err := out.Write([]byte("one ")); err != nil {
			return err
		}
		return rpc.Error{Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: reason.WorkerLost, Message: "m"}.Err()
	})
	for _, h2 := range []bool{false, true} {
		out, err := s.do(t, h2, http.MethodPost, "/do", nil)
		require.NoError(t, err)
		text, err := io.ReadAll(out.Body)
		require.NoError(t, err)
		require.NoError(t, out.Body.Close())
		require.Equal(t, http.StatusOK, out.StatusCode)
		require.Equal(t, httpapi.EventStream, out.Header.Get("Content-Type"))
		require.Equal(t, "one error: "+reason.WorkerLost, string(text))
		require.Equal(t, ended{"/do", http.StatusOK, reason.WorkerLost}, <-s.ended)
	}
}

func TestErrorBeforeTheFirstWriteIsAResponse(t *testing.T) {
	s := start(t, nil, func(x *httpapi.Exchange) error {
		x.Stream(httpapi.EventStream)
		return httpapi.Invalid("a.b", "is wrong")
	})
	out, text := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
	require.Equal(t, "application/json", out.Header.Get("Content-Type"))
	require.Equal(t, "INVALID_ARGUMENT a.b", text)
}

// body decodes {"text": ...} and answers its length.
func body(x *httpapi.Exchange) error {
	var r struct {
		Text string `json:"text"`
	}
	if err := x.Decode(&r, func(path string) bool { return path == "skipped" }); err != nil {
		return err
	}
	return x.WriteJSON(len(r.Text))
}

func TestBodiesAreBounded(t *testing.T) {
	s := start(t, func(c *httpapi.Config) { c.MaxBodyBytes, c.MaxHeldBytes = 200_000, 300_000 }, body)
	text := func(n int) string { return `{"text":"` + strings.Repeat("x", n) + `"}` }
	for _, n := range []int{0, 1, 32 << 10, 100_000, 199_000} {
		out, got := s.call(t, http.MethodPost, "/do", text(n))
		require.Equal(t, http.StatusOK, out.StatusCode, got)
		require.Equal(t, fmt.Sprintf("%d\n", n), got)
	}
	for _, in := range []io.Reader{strings.NewReader(text(200_000)), io.MultiReader(strings.NewReader(text(200_000)))} { // with a length and without
		out, err := s.do(t, false, http.MethodPost, "/do", in)
		require.NoError(t, err)
		require.NoError(t, out.Body.Close())
		require.Equal(t, http.StatusRequestEntityTooLarge, out.StatusCode)
	}
	out, got := s.call(t, http.MethodPost, "/do", text(5), "Content-Encoding", "gzip")
	require.Equal(t, http.StatusUnsupportedMediaType, out.StatusCode, got)
}

func TestHeldBodiesAreBoundedTogether(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{}, 2)
	s := start(t, func(c *httpapi.Config) { c.MaxHeldBytes = 300_000 }, func(x *httpapi.Exchange) error {
		var r struct {
			Text string `json:"text"`
		}
		if err := x.Decode(&r, nil); err != nil {
			return err
		}
		held <- struct{}{}
		<-hold
		return x.WriteJSON(0)
	})
	large := `{"text":"` + strings.Repeat("x", 150_000) + `"}`
	first := make(chan int)
	go func() {
		out, err := s.do(t, false, http.MethodPost, "/do", strings.NewReader(large)) //nolint:testifylint // it fails only for a malformed URL
		if err == nil {
			_ = out.Body.Close()
			first <- out.StatusCode
		}
	}()
	<-held
	out, text := s.call(t, http.MethodPost, "/do", large)
	require.Equal(t, http.StatusTooManyRequests, out.StatusCode)
	require.Equal(t, reason.TooManyBytesWaiting+" ", text)
	require.Equal(t, "1", out.Header.Get("Retry-After"))
	close(hold)
	require.Equal(t, http.StatusOK, <-first)
	out, text = s.call(t, http.MethodPost, "/do", large)
	require.Equal(t, http.StatusOK, out.StatusCode, text)
}

func TestSkippedFieldsAreNamedOrRefused(t *testing.T) {
	s := start(t, nil, body)
	out, text := s.call(t, http.MethodPost, "/do", `{"text":"a","skipped":1}`)
	require.Equal(t, "1\n", text)
	require.Equal(t, "skipped", out.Header.Get(httpapi.SkippedHeader))
	out, text = s.call(t, http.MethodPost, "/do", `{"text":"a","other":1}`)
	require.Equal(t, http.StatusBadRequest, out.StatusCode)
	require.Equal(t, reason.UnknownField+" other", text)
	strict := start(t, func(c *httpapi.Config) { c.Strict = true }, body)
	_, text = strict.call(t, http.MethodPost, "/do", `{"text":"a","skipped":1}`)
	require.Equal(t, reason.UnknownField+" skipped", text)
	by := start(t, func(c *httpapi.Config) { c.Strict = true }, func(x *httpapi.Exchange) error { return x.Skip("metadata") })
	_, text = by.call(t, http.MethodPost, "/do", "")
	require.Equal(t, "UNIMPLEMENTED metadata", text)
}

func TestRequestIDsGoBothWays(t *testing.T) {
	s := start(t, nil, func(x *httpapi.Exchange) error {
		md, _ := metadata.FromOutgoingContext(x.Context())
		require.Equal(t, []string{x.ID}, md.Get(rpc.RequestIDKey))
		return x.WriteJSON(x.ID)
	})
	out, text := s.call(t, http.MethodPost, "/do", "", "X-Request-Id", "mine")
	require.Equal(t, "mine", out.Header.Get("X-Request-Id"))
	require.Equal(t, "\"mine\"\n", text)
	for _, wrong := range []string{"", strings.Repeat("x", 129), "caf\u00e9"} {
		out, _ = s.call(t, http.MethodPost, "/do", "", "X-Request-Id", wrong)
		require.Len(t, out.Header.Get("X-Request-Id"), 16)
	}
}

func TestTokensAndKeysArePassedOn(t *testing.T) {
	get := func(x *httpapi.Exchange) error {
		md, _ := metadata.FromOutgoingContext(x.Context())
		return x.WriteJSON([][]string{md.Get("authorization"), md.Get(rpc.RoutingKey), md.Get("traceparent")})
	}
	s := start(t, nil, get)
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for want, headers := range map[string][]string{
		`[["Bearer a"],["k"],null]`:            {"Authorization", "Bearer a", "Millrace-Routing-Key", "k"},
		`[null,["k"],null]`:                    {"Authorization", "Bearer \u00e9", "Millrace-Routing-Key", "k"},
		`[["Bearer b"],null,null]`:             {"X-Api-Key", "b"},
		`[null,null,["` + span + `"]]`:         {"Traceparent", span},
		`[["Bearer a"],null,["` + span + `"]]`: {"Authorization", "Bearer a", "X-Api-Key", "b", "Traceparent", span},
	} {
		_, text := s.call(t, http.MethodPost, "/do", "", headers...)
		require.Equal(t, want+"\n", text)
	}
	hidden := start(t, func(c *httpapi.Config) { c.HidesTokens = true }, get)
	_, text := hidden.call(t, http.MethodPost, "/do", "", "Authorization", "Bearer a")
	require.Equal(t, "[null,null,null]\n", text)
}

func TestTimeoutBecomesTheDeadline(t *testing.T) {
	s := start(t, nil, func(x *httpapi.Exchange) error {
		if _, ok := x.Context().Deadline(); !ok {
			return x.WriteJSON("none")
		}
		<-x.Context().Done()
		return x.Context().Err()
	})
	for _, short := range []string{"0.001", "1ms"} {
		out, text := s.call(t, http.MethodPost, "/do", "", "X-Request-Timeout", short)
		require.Equal(t, http.StatusGatewayTimeout, out.StatusCode)
		require.Equal(t, "DEADLINE_EXCEEDED ", text)
	}
	_, text := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, "\"none\"\n", text)
	for _, wrong := range []string{"soon", "0", "-1", "NaN", "86401", "25h"} {
		out, text := s.call(t, http.MethodPost, "/do", "", "X-Request-Timeout", wrong)
		require.Equal(t, http.StatusBadRequest, out.StatusCode)
		require.Equal(t, "INVALID_ARGUMENT X-Request-Timeout", text)
	}
}

func TestClientThatLeavesEndsItsCalls(t *testing.T) {
	running := make(chan struct{})
	s := start(t, nil, func(x *httpapi.Exchange) error {
		close(running)
		<-x.Context().Done()
		return x.Context().Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	in, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/do", nil)
	require.NoError(t, err)
	go func() {
		<-running
		cancel()
	}()
	_, err = (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(in)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, ended{"/do", 499, reason.Cancelled}, <-s.ended)
}

func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	const stall = 50 * time.Millisecond
	for _, h2 := range []bool{false, true} {
		for _, idle := range []time.Duration{0, 2 * stall} { // before the write that is not read
			s := start(t, func(c *httpapi.Config) { c.SendStall = stall }, func(x *httpapi.Exchange) error {
				out, piece := x.Stream("text/plain"), make([]byte, 1<<20)
				if err := out.Write([]byte("a")); err != nil {
					return err
				}
				time.Sleep(idle)
				for {
					if err := out.Write(piece); err != nil {
						return err
					}
				}
			})
			out, err := s.do(t, h2, http.MethodPost, "/do", nil)
			require.NoError(t, err)
			require.Equal(t, ended{"/do", http.StatusOK, reason.SlowReader}, <-s.ended)
			require.NoError(t, out.Body.Close())
		}
	}
}

func TestIdleStreamIsNotCutOff(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		const stall = 20 * time.Millisecond
		s := start(t, func(c *httpapi.Config) { c.SendStall = stall }, func(x *httpapi.Exchange) error {
			out := x.Stream("text/plain")
			for range 3 {
				if err := out.Write([]byte("a")); err != nil {
					return err
				}
				time.Sleep(2 * stall)
			}
			return nil
		})
		out, err := s.do(t, h2, http.MethodPost, "/do", nil)
		require.NoError(t, err)
		text, err := io.ReadAll(out.Body)
		require.NoError(t, err)
		require.NoError(t, out.Body.Close())
		require.Equal(t, "aaa", string(text))
	}
}

func TestPanicCostsItsRequestOnly(t *testing.T) {
	s := start(t, nil, func(x *httpapi.Exchange) error {
		if x.Request.Header.Get("Calm") == "" {
			panic("broken")
		}
		return x.WriteJSON("fine")
	})
	out, text := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, http.StatusInternalServerError, out.StatusCode)
	require.Equal(t, reason.Panic+" ", text)
	_, text = s.call(t, http.MethodPost, "/do", "", "Calm", "yes")
	require.Equal(t, "\"fine\"\n", text)
}

func TestDrainLetsStreamsEnd(t *testing.T) {
	rpctest.NoLeaks(t)
	finish := make(chan struct{})
	s := start(t, nil, func(x *httpapi.Exchange) error {
		out := x.Stream("text/plain")
		if err := out.Write([]byte("begin\n")); err != nil {
			return err
		}
		<-finish
		return out.Write([]byte("end\n"))
	})
	out, err := s.do(t, false, http.MethodPost, "/do", nil)
	require.NoError(t, err)
	read := bufio.NewReader(out.Body)
	line, err := read.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "begin\n", line)
	probe, text := s.call(t, http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusOK, probe.StatusCode, text)
	s.signal()
	require.Eventually(t, func() bool {
		probe, _ := s.call(t, http.MethodGet, "/readyz", "")
		return probe.StatusCode == http.StatusServiceUnavailable
	}, hang, time.Millisecond)
	probe, _ = s.call(t, http.MethodGet, "/healthz", "")
	require.Equal(t, http.StatusOK, probe.StatusCode)
	refused, text := s.call(t, http.MethodPost, "/do", "")
	require.Equal(t, http.StatusServiceUnavailable, refused.StatusCode)
	require.Equal(t, reason.Stopping+" ", text)
	close(finish)
	line, err = read.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "end\n", line)
	require.NoError(t, out.Body.Close())
}

func TestDrainTimeoutCutsStreamsOff(t *testing.T) {
	s := start(t, func(c *httpapi.Config) { c.DrainTimeout = time.Millisecond }, func(x *httpapi.Exchange) error {
		out := x.Stream("text/plain")
		if err := out.Write([]byte("begin ")); err != nil {
			return err
		}
		<-x.Context().Done()
		return x.Context().Err()
	})
	out, err := s.do(t, false, http.MethodPost, "/do", nil)
	require.NoError(t, err)
	s.signal()
	text, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.Equal(t, "begin error: "+reason.Stopping, string(text))
	require.NoError(t, out.Body.Close())
}

func TestReadinessIsThatOfTheServers(t *testing.T) {
	s := start(t, func(c *httpapi.Config) { c.Ready = func(context.Context) error { return errors.New("none") } }, body)
	out, text := s.call(t, http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, out.StatusCode)
	require.Equal(t, "no model server is ready\n", text)
}

func TestUnknownPathsAndMethods(t *testing.T) {
	s := start(t, nil, body)
	out, text := s.call(t, http.MethodGet, "/do", "")
	require.Equal(t, http.StatusMethodNotAllowed, out.StatusCode)
	require.Equal(t, "POST", out.Header.Get("Allow"))
	require.Equal(t, "UNIMPLEMENTED ", text)
	require.Equal(t, ended{"unknown", http.StatusMethodNotAllowed, "UNIMPLEMENTED"}, <-s.ended, "paths of clients make no label")
	out, text = s.call(t, http.MethodPost, "/other", "")
	require.Equal(t, http.StatusNotFound, out.StatusCode)
	require.Equal(t, "NOT_FOUND ", text)
}
