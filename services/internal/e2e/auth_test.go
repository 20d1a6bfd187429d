package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/millrace/millrace/internal/cputest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc"
)

// keyFile is a server's key file and the tokens of its keys.
type keyFile struct {
	path   string
	keys   []*auth.Key
	tokens map[string]string // by id
	all    []string          // every token ever made
}

func newKeyFile(t *testing.T) *keyFile {
	t.Helper()
	f := &keyFile{path: filepath.Join(t.TempDir(), "keys.yaml"), tokens: map[string]string{}}
	f.write(t)
	return f
}

// add makes a key; write writes it to the file.
func (f *keyFile) add(id string, change func(*auth.Key), rights ...auth.Right) *auth.Key {
	k := &auth.Key{ID: id, Rights: rights}
	f.renew(k)
	if change != nil {
		change(k)
	}
	f.keys = append(f.keys, k)
	return k
}

// renew adds a token to a key.
func (f *keyFile) renew(k *auth.Key) string {
	token := auth.NewToken()
	f.tokens[k.ID], f.all = token, append(f.all, token)
	k.Hashes = append(k.Hashes, auth.HashOf(token))
	return token
}

// remove removes a key.
func (f *keyFile) remove(k *auth.Key) {
	f.keys = slices.DeleteFunc(f.keys, func(other *auth.Key) bool { return other == k })
}

func (f *keyFile) write(t *testing.T) {
	t.Helper()
	text := "[]\n"
	for i, k := range f.keys {
		line, err := k.Line()
		require.NoError(t, err)
		if i == 0 {
			text = ""
		}
		text += line
	}
	certstest.Write(t, f.path, []byte(text))
}

// as dials with the token of a key.
func (f *keyFile) as(t *testing.T, id string) grpc.DialOption {
	t.Helper()
	return showing(t, &auth.Flags{Token: f.tokens[id]})
}

// showing returns the dial option of the flags.
func showing(t *testing.T, f *auth.Flags) grpc.DialOption {
	t.Helper()
	option, err := f.Dialer(hclog.NewNullLogger())
	require.NoError(t, err)
	return option("127.0.0.1:1")
}

// keyed is a fleet whose workers and scheduler authenticate callers by tokens.
type keyed struct {
	ofWorkers, ofScheduler *keyFile
	tokenFile              string // of the scheduler, for workers
	workers                []*server
	scheduler              *server
	metricsAddress         string // the scheduler's
}

// keep starts n workers with steps of 2 ms and their scheduler; add can add keys before that.
func keep(t *testing.T, n int, add func(*keyFile)) *keyed {
	t.Helper()
	k := &keyed{ofWorkers: newKeyFile(t), ofScheduler: newKeyFile(t), tokenFile: filepath.Join(t.TempDir(), "token"), metricsAddress: freeAddress(t)}
	everyone := func(key *auth.Key) { key.Tenant = auth.AnyTenant }
	k.ofWorkers.add("scheduler", everyone, auth.Rights()...)
	k.ofWorkers.add("operator", everyone, auth.Rights()...)
	k.ofScheduler.add("operator", everyone, auth.Rights()...)
	if add != nil {
		add(k.ofScheduler)
	}
	k.ofWorkers.write(t)
	k.ofScheduler.write(t)
	certstest.Write(t, k.tokenFile, []byte(k.ofWorkers.tokens["scheduler"]+"\n"))
	var addresses []string
	for i := range n {
		args := append([]string{"--models", modelsDir, "--worker-id", fmt.Sprint("w", i), "--threads", "1", "--auth-keys", k.ofWorkers.path}, cputest.Flags()...)
		w := serveTo(t, k.ofWorkers.as(t, "operator"), workerBinary, append(args, paced...)...)
		k.workers, addresses = append(k.workers, w), append(addresses, w.address)
	}
	k.scheduler = serveTo(t, k.ofScheduler.as(t, "operator"), schedulerBinary, "--workers", strings.Join(addresses, ","),
		"--auth-keys", k.ofScheduler.path, "--worker-token-file", k.tokenFile, "--metrics-listen", k.metricsAddress, patient[0], patient[1])
	k.scheduler.untilServed(t, long, n)
	return k
}

// by returns a client of the scheduler that sends the token of a key.
func (k *keyed) by(t *testing.T, id string) pb.InferenceServiceClient {
	t.Helper()
	return pb.NewInferenceServiceClient(dial(t, k.scheduler.address, k.ofScheduler.as(t, id)))
}

// requireNoToken fails if a program wrote a token or a part of one.
func (k *keyed) requireNoToken(t *testing.T, others ...string) {
	t.Helper()
	texts := append([]string{k.scheduler.log.String()}, others...)
	for _, w := range k.workers {
		texts = append(texts, w.log.String())
	}
	for _, text := range texts {
		for _, token := range slices.Concat(k.ofWorkers.all, k.ofScheduler.all) {
			require.NotContains(t, text, token[len("millrace_"):][:20])
			require.NotContains(t, text, auth.HashOf(token).String()[len("sha256:"):][:20])
		}
	}
}

// rightsFor returns the rights that allow a method.
func rightsFor(t *testing.T, method string) []auth.Right {
	t.Helper()
	service, name := method[1:strings.LastIndexByte(method, '/')], method[strings.LastIndexByte(method, '/')+1:]
	switch {
	case service == "millrace.v1.InferenceService":
		return []auth.Right{auth.Generate}
	case service == "grpc.channelz.v1.Channelz", strings.HasPrefix(name, "Drain"), strings.HasPrefix(name, "Undrain"):
		return []auth.Right{auth.Admin}
	case service == "millrace.v1.WorkerService", strings.HasPrefix(service, "xds.service.orca."):
		return []auth.Right{auth.Health}
	case strings.HasPrefix(service, "grpc."):
		return auth.Rights()
	}
	rights, known := map[string][]auth.Right{
		"ListModels": {auth.Generate, auth.Load, auth.Admin, auth.Health}, "LoadModel": {auth.Load}, "UnloadModel": {auth.Load},
		"WatchFleet":    {auth.Admin, auth.Health},
		"ListCodebooks": {auth.Vectors, auth.Load, auth.Admin, auth.Health},
		"TrainCodebook": {auth.Vectors}, "Encode": {auth.Vectors}, "Decode": {auth.Vectors},
		"PutCodebook": {auth.Load}, "LoadCodebook": {auth.Load}, "UnloadCodebook": {auth.Load},
	}[name]
	require.True(t, known, "no right is known for %s", method)
	return rights
}

// knock makes a call with an empty request, and returns the first answer.
func knock(t *testing.T, on *grpc.ClientConn, method string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	stream, err := on.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(&emptypb.Empty{}) // if the call has ended, RecvMsg returns its status
	_ = stream.CloseSend()
	return stream.RecvMsg(&emptypb.Empty{})
}

func TestEveryMethodRequiresItsRight(t *testing.T) {
	// Callers without a key have no rights.
	t.Parallel()
	k := keep(t, 1, func(f *keyFile) {
		for _, right := range auth.Rights() {
			f.add(string(right), nil, right)
		}
	})
	for _, right := range auth.Rights() {
		k.ofWorkers.add(string(right), nil, right)
	}
	k.ofWorkers.write(t)
	for _, on := range []struct {
		*server
		keys   *keyFile
		domain string
	}{{k.workers[0], k.ofWorkers, rpc.WorkerDomain}, {k.scheduler, k.ofScheduler, rpc.SchedulerDomain}} {
		known := methods(t, on.conn)
		require.Contains(t, known, "/grpc.health.v1.Health/Check")
		stranger, by := dial(t, on.address), map[auth.Right]*grpc.ClientConn{}
		for _, right := range auth.Rights() {
			by[right] = dial(t, on.address, on.keys.as(t, string(right)))
			require.Eventually(t, func() bool { // until its file was read again
				return status.Code(knock(t, by[right], "/no.Service/Method")) == codes.Unimplemented
			}, hang, 10*time.Millisecond)
		}
		for _, method := range append(known, "/no.Service/Method") {
			if method == "/grpc.health.v1.Health/Check" {
				require.NoError(t, knock(t, stranger, method), "probes have no token")
				continue
			}
			require.Equal(t, fault{codes.Unauthenticated, on.domain, "NO_TOKEN"}, faultOf(knock(t, stranger, method)), method)
			if method == "/no.Service/Method" {
				continue
			}
			may := rightsFor(t, method)
			for right, conn := range by {
				err := knock(t, conn, method)
				if slices.Contains(may, right) {
					require.NotContains(t, []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.DeadlineExceeded}, status.Code(err), "%s as %s: %v", method, right, err)
					continue
				}
				require.Equal(t, fault{codes.PermissionDenied, on.domain, "RIGHT_MISSING"}, faultOf(err), "%s as %s: %v", method, right, err)
			}
		}
	}
	k.requireNoToken(t)
}

func TestQuotaRefusalsAreCountedAndLoggedOnce(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(-time.Minute)
	k := keep(t, 1, func(f *keyFile) {
		f.add("web", func(k *auth.Key) { k.Tenant = "shop" }, auth.Generate)
		f.add("texts", nil, auth.Generate)
		f.add("old", func(k *auth.Key) { k.Expires = soon }, auth.Generate)
		f.add("few", func(k *auth.Key) { k.Limits.RequestsPerMinute = 1 }, auth.Generate)
		f.add("short", func(k *auth.Key) { k.Limits.TokensPerMinute = 12 }, auth.Generate)
		f.add("single", func(k *auth.Key) { k.Limits.Streams = 1 }, auth.Generate)
		f.add("looks", nil, auth.Health)
		f.tokens["nobody"] = auth.NewToken()
		f.all = append(f.all, f.tokens["nobody"])
	})
	// The bits equal those of a fleet without keys, and tenant and priority reach the worker.
	want := undisturbed(t, startWorker(t, "plain", paced...), []*pb.GenerateRequest{ask(long, 20)})[0]
	got := generate(within(t), k.by(t, "web"), ask(long, 20))
	requireSame(t, want, got, "with keys")
	_, body := page(t, k.metricsAddress, "/metrics")
	require.InDelta(t, got.started.GetPromptTokens()+20, monitortest.Series(t, body)["millrace_key_tokens_total key=web"], 0)

	requireTextsCounted(t, k)

	with := func(change func(*pb.GenerateRequest)) *pb.GenerateRequest {
		in := ask(long, 20)
		change(in)
		return in
	}
	few, short, single := k.by(t, "few"), k.by(t, "short"), k.by(t, "single")
	require.NoError(t, generate(within(t), short, ask(long, 400)).err, "the tokens count when the call has ended, and are half an hour's quota")
	standing, err := begin(undated(t), single, endless())
	require.NoError(t, err)
	require.NoError(t, standing.read())
	stranger := pb.NewInferenceServiceClient(dial(t, k.scheduler.address))
	reasons := map[string]int{"TOO_MANY_REQUESTS": 1}
	begun := 0
	for err = nil; err == nil; begun++ { // on a slow machine a minute may have passed
		err = generate(within(t), few, ask(long, 1)).err
	}
	require.Greater(t, begun, 1)
	require.Equal(t, byScheduler(codes.ResourceExhausted, "TOO_MANY_REQUESTS"), faultOf(err))
	require.Positive(t, rpc.RetryAfter(err))
	for name, tc := range map[string]struct {
		by     pb.InferenceServiceClient
		in     *pb.GenerateRequest
		code   codes.Code
		reason string
		retry  bool
	}{
		"no token":             {stranger, ask(long, 1), codes.Unauthenticated, "NO_TOKEN", false},
		"an unknown token":     {k.by(t, "nobody"), ask(long, 1), codes.Unauthenticated, "UNKNOWN_TOKEN", false},
		"a worker's token":     {pb.NewInferenceServiceClient(dial(t, k.scheduler.address, k.ofWorkers.as(t, "scheduler"))), ask(long, 1), codes.Unauthenticated, "UNKNOWN_TOKEN", false},
		"an expired token":     {k.by(t, "old"), ask(long, 1), codes.Unauthenticated, "TOKEN_EXPIRED", false},
		"no right":             {k.by(t, "looks"), ask(long, 1), codes.PermissionDenied, "RIGHT_MISSING", false},
		"another tenant":       {k.by(t, "web"), with(func(in *pb.GenerateRequest) { in.FairnessId = ptr("web") }), codes.PermissionDenied, "OTHER_TENANT", false},
		"a priority above":     {k.by(t, "web"), with(func(in *pb.GenerateRequest) { in.Priority = ptr(int32(1)) }), codes.PermissionDenied, "PRIORITY_TOO_HIGH", false},
		"tokens above":         {short, ask(long, 1), codes.ResourceExhausted, "TOO_MANY_TOKENS", true},
		"a stream beyond many": {single, ask(long, 1), codes.ResourceExhausted, "TOO_MANY_STREAMS", false},
	} {
		err := generate(within(t), tc.by, tc.in).err
		require.Equal(t, byScheduler(tc.code, tc.reason), faultOf(err), "%s: %v", name, err)
		require.Equal(t, tc.retry, rpc.RetryAfter(err) > 0, "%s: %v", name, err)
		reasons[tc.reason]++
	}
	// Workers count like schedulers.
	k.ofWorkers.add("short", func(k *auth.Key) { k.Limits.TokensPerMinute = 12 }, auth.Generate)
	k.ofWorkers.write(t)
	direct := pb.NewInferenceServiceClient(dial(t, k.workers[0].address, k.ofWorkers.as(t, "short")))
	require.Eventually(t, func() bool { return generate(within(t), direct, ask(long, 400)).err == nil }, hang, 10*time.Millisecond)
	require.Equal(t, byWorker(codes.ResourceExhausted, "TOO_MANY_TOKENS"), faultOf(generate(within(t), direct, ask(long, 1)).err))
	for reason, n := range reasons {
		require.Eventually(t, func() bool { return strings.Count(k.scheduler.log.String(), "reason="+reason) >= n }, hang, 10*time.Millisecond)
		require.Equal(t, n, strings.Count(k.scheduler.log.String(), "reason="+reason), "one line each: %s", reason)
		_, body := page(t, k.metricsAddress, "/metrics")
		require.InDelta(t, n, monitortest.Series(t, body)["millrace_refused_calls_total origin=own reason="+reason], 0, reason)
	}
	require.NoError(t, standing.read(), "a refusal has no effect on open streams")

	// The client reads its token from a file or from the environment, and its error names what is
	// missing.
	file := filepath.Join(t.TempDir(), "token")
	certstest.Write(t, file, []byte(k.ofScheduler.tokens["web"]))
	var printed []string
	run := func(environment []string, args ...string) (string, error) {
		cmd := exec.CommandContext(within(t), clientBinary, append(args, "--target", k.scheduler.address)...)
		cmd.Env = append(os.Environ(), environment...)
		out, err := cmd.CombinedOutput()
		printed = append(printed, string(out))
		return string(out), err
	}
	out, err := run(nil, "generate", "-m", long, "--max-tokens", "3", "--token-file", file, "Once")
	require.NoError(t, err, out)
	out, err = run([]string{"MILLRACE_TOKEN=" + k.ofScheduler.tokens["web"]}, "models")
	require.NoError(t, err, out)
	out, err = run([]string{"MILLRACE_TOKEN=" + k.ofScheduler.tokens["nobody"]}, "models")
	require.Error(t, err)
	require.Contains(t, out, "UNKNOWN_TOKEN")
	out, err = run(nil, "models")
	require.Error(t, err)
	require.Contains(t, out, "try: --token-file")
	out, err = run([]string{"MILLRACE_TOKEN_FILE=" + file}, "workers")
	require.Error(t, err)
	require.Contains(t, out, "reason: RIGHT_MISSING (PERMISSION_DENIED, from scheduler.millrace.dev)")
	_, err = run(nil, "health")
	require.NoError(t, err, "a probe has no token")
	k.requireNoToken(t, printed...)
}

func TestARevokedKeyEndsItsStreamsAndNoOthers(t *testing.T) {
	t.Parallel()
	var thief *auth.Key
	k := keep(t, 1, func(f *keyFile) {
		thief = f.add("thief", nil, auth.Generate)
		f.add("web", nil, auth.Generate)
	})
	lasting, leave := context.WithCancel(undated(t))
	stream := func(id string) *call {
		c, err := begin(lasting, k.by(t, id), endless())
		require.NoError(t, err)
		require.NoError(t, c.read())
		return c
	}
	stolen, own := stream("thief"), stream("web")
	k.ofScheduler.remove(thief)
	k.ofScheduler.write(t)
	var err error
	for err == nil {
		err = stolen.read()
	}
	require.Equal(t, byScheduler(codes.Unauthenticated, "TOKEN_REVOKED"), faultOf(err), "%v", err)
	require.Equal(t, byScheduler(codes.Unauthenticated, "UNKNOWN_TOKEN"), faultOf(generate(within(t), k.by(t, "thief"), ask(long, 1)).err))
	k.workers[0].untilLoad(t, "the thief's place is free", func(l *pb.LoadStatus) bool { return l.GetRunning() == 1 })
	require.NoError(t, own.read())

	// A worker that removes the scheduler's key is lost to it until the key is back; streams fail
	// over.
	scheduler := k.ofWorkers.keys[0]
	k.ofWorkers.remove(scheduler)
	k.ofWorkers.write(t)
	for _, says := range []string{"reason=TOKEN_REVOKED", "reason=UNKNOWN_TOKEN"} {
		require.Eventually(t, func() bool { return strings.Contains(k.workers[0].log.String(), says) }, hang, 10*time.Millisecond, says)
	}
	k.workers[0].untilLoad(t, "the stream is cut", func(l *pb.LoadStatus) bool { return l.GetRunning() == 0 })
	k.ofWorkers.keys = append(k.ofWorkers.keys, scheduler)
	k.ofWorkers.write(t)
	// Tokens in flight may be read first; they do not show that the stream continues.
	k.workers[0].untilLoad(t, "the stream has come again", func(l *pb.LoadStatus) bool { return l.GetRunning() == 1 })
	for before := len(own.ids); len(own.ids) < before+200; {
		require.NoError(t, own.read())
	}
	// Its prompt was computed twice and is counted once.
	leave()
	line := regexp.MustCompile(`key=web .* tokens=(\d+) attempts=(\d+)`)
	require.Eventually(t, func() bool { return line.MatchString(k.scheduler.log.String()) }, hang, 10*time.Millisecond)
	found := line.FindStringSubmatch(k.scheduler.log.String())
	tokens, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	require.NotEqual(t, "1", found[2])
	_, body := page(t, k.metricsAddress, "/metrics")
	require.InDelta(t, int(own.started.GetPromptTokens())+tokens, monitortest.Series(t, body)["millrace_key_tokens_total key=web"], 0)
	k.requireNoToken(t)
}

func TestKeysRotateUnderLoad(t *testing.T) {
	// No stream may fail while keys and tokens are replaced.
	t.Parallel()
	var web *auth.Key
	k := keep(t, 2, func(f *keyFile) { web = f.add("web", nil, auth.Generate) })
	file := filepath.Join(t.TempDir(), "token")
	certstest.Write(t, file, []byte(k.ofScheduler.tokens["web"]))
	first := k.by(t, "web")
	want := generate(within(t), first, ask(long, 3))
	require.NoError(t, want.err)
	var standing []*call
	lasting, leave := context.WithCancel(undated(t))
	for range 4 {
		c, err := begin(lasting, first, endless())
		require.NoError(t, err)
		standing = append(standing, c)
	}
	// Callers that connect again for each call, with the token that the file has at that time.
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var served, failed atomic.Int64
	stop := sync.OnceFunc(func() { cancel(); callers.Wait() })
	t.Cleanup(stop)
	var rounds [4]atomic.Int64 // of each caller
	for i := range rounds {
		callers.Go(func() {
			for ctx.Err() == nil {
				option, err := (&auth.Flags{TokenFile: file}).Dialer(hclog.NewNullLogger())
				if err == nil {
					var conn *grpc.ClientConn
					if conn, err = rpc.Dial(k.scheduler.address, "e2e", option(k.scheduler.address)); err == nil {
						o := generate(ctx, pb.NewInferenceServiceClient(conn), ask(long, 3))
						if err = o.err; err == nil && o.text != want.text {
							err = fmt.Errorf("the text is %q", o.text)
						}
						_ = conn.Close()
					}
				}
				if err != nil && ctx.Err() == nil {
					failed.Add(1)
					t.Log(err)
				}
				served.Add(1)
				rounds[i].Add(1)
			}
		})
	}
	reads := func(s *server, what string) int { return strings.Count(s.log.String(), what) }
	// seen makes a change, and waits until the programs report it and every caller has connected
	// again.
	seen := func(what string, by []*server, change func()) {
		before := make([]int, len(by))
		for i, s := range by {
			before[i] = reads(s, what)
		}
		change()
		for i, s := range by {
			require.Eventually(t, func() bool { return reads(s, what) > before[i] }, hang, 10*time.Millisecond, what)
		}
		for i := range rounds {
			round := rounds[i].Load()
			require.Eventually(t, func() bool { return rounds[i].Load() > round+1 }, hang, 10*time.Millisecond)
		}
	}
	const keys, token = "keys read again", "token read again"
	everyone := []*server{k.scheduler}
	for range 2 {
		// A caller's token: add the next one, distribute it, remove the old one.
		var next string
		seen(keys, everyone, func() { next = k.ofScheduler.renew(web); k.ofScheduler.write(t) })
		seen(keys, nil, func() { certstest.Write(t, file, []byte(next)) })
		seen(keys, everyone, func() { web.Hashes = web.Hashes[1:]; k.ofScheduler.write(t) })
		// The scheduler's own token in the same way.
		scheduler := k.ofWorkers.keys[0]
		seen(keys, k.workers, func() { next = k.ofWorkers.renew(scheduler); k.ofWorkers.write(t) })
		seen(token, everyone, func() { certstest.Write(t, k.tokenFile, []byte(next)) })
		seen(keys, k.workers, func() { scheduler.Hashes = scheduler.Hashes[1:]; k.ofWorkers.write(t) })
	}
	// A broken file leaves the old keys in force.
	seen("keys cannot be used", everyone, func() { certstest.Write(t, k.ofScheduler.path, []byte("- {id: half")) })
	stop()
	require.Zero(t, failed.Load(), "of %d", served.Load())
	for _, c := range standing {
		for before := len(c.ids); len(c.ids) == before; {
			require.NoError(t, c.read(), "a key whose token is replaced is the same key")
		}
	}
	leave()
	require.Eventually(t, func() bool { return reads(k.scheduler, "grpc.code=Canceled") >= len(standing) }, hang, 10*time.Millisecond)
	require.Zero(t, k.scheduler.resumes(), "no stream has moved")
	require.Equal(t, byScheduler(codes.Unauthenticated, "UNKNOWN_TOKEN"), faultOf(generate(within(t), first, ask(long, 1)).err))
	k.requireNoToken(t)
	t.Logf("%d streams, each on a connection of its own, none failed", served.Load())
}
