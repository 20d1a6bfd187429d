package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/internal/flood"
	"github.com/millrace/millrace/services/internal/intake"
	"github.com/millrace/millrace/services/internal/reason"
)

// Limits of every server. Static windows turn off grpc-go's bandwidth estimator, whose pings cost as much as small
// messages do.
const (
	// DefaultMaxReceiveBytes bounds one request.
	DefaultMaxReceiveBytes = 16 << 20
	// ResumeBytes is what workers take beyond it: a scheduler that moves a stream adds to its request what was delivered.
	ResumeBytes = 1 << 20
	// receivingRequests is how many of the largest requests are received at once, unless told otherwise.
	receivingRequests = 8
	// maxSendBytes bounds one response.
	maxSendBytes = 64 << 20
	// serverConnWindow is what a caller may send on a connection before it is told that it has arrived, whoever reads it. What it
	// may send of one call before somebody reads that is intake.Window.
	serverConnWindow = 4 << 20
	// plainReadBuffer is what is read of a connection at once that is not TLS: it is taken when there is something to read, and rows come
	// in few reads. A record of TLS is 16 KiB, and a buffer for one is kept while nothing comes.
	plainReadBuffer, secureReadBuffer = 64 << 10, 32 << 10
	// maxHeaderBytes bounds the headers of one call: tokens and traces are some hundred bytes.
	maxHeaderBytes = 16 << 10
	// handshakeTimeout is what a new connection gets to become an HTTP/2 one; silent ones are closed then.
	handshakeTimeout = 10 * time.Second
	// maxUnsettled is how many connections may be on their way to become HTTP/2: a thousandth of a second each, but those of who
	// means harm. Each takes about 80 kB.
	maxUnsettled = 512
	// maxConcurrentStreams is twice what a scheduler sends a worker on one connection unless it is told otherwise.
	maxConcurrentStreams = 1 << 15
	// streamWorkers is how many goroutines wait for calls, their stacks grown by earlier ones. Calls beyond them get
	// goroutines of their own.
	streamWorkers = 32
	// watchersNotice is how long watchers of health get to see NOT_SERVING before their calls end.
	watchersNotice = 100 * time.Millisecond
)

// ServerConfig is what servers differ in.
type ServerConfig struct {
	// Domain of the statuses that the server itself makes: WorkerDomain or SchedulerDomain. Required.
	Domain string
	// MaxReceiveBytes bounds one request. 0: DefaultMaxReceiveBytes.
	MaxReceiveBytes int
	// MaxMethodBytes bounds one request of the methods that it names, by their full names, below MaxReceiveBytes.
	MaxMethodBytes map[string]int
	// MaxWaitingBytes bounds all the requests together that handlers hold; see LetGo. At least one of the largest is always
	// taken. 0: DefaultMaxWaitingBytes.
	MaxWaitingBytes int64
	// MaxReceivingBytes bounds the requests above 32 KiB that are being received. At least one of the largest is always taken. 0: eight
	// of the largest.
	MaxReceivingBytes int64
	// MaxSendingBytes bounds the messages above 1 KiB that are being sent. One of the largest is always taken. 0: DefaultMaxSendingBytes.
	MaxSendingBytes int64
	// SendStall is how long an answer may not move before its call ends with SLOW_READER. 0: DefaultSendStall.
	SendStall time.Duration
	// MaxConnectionsPerAddress is how many connections one address may have. 0: no bound.
	MaxConnectionsPerAddress int
	// DrainTimeout bounds the wait for running calls when the server stops. 0: they are cut off at once.
	DrainTimeout time.Duration
	// Observer is told of every call; nil: nobody is.
	Observer CallObserver
	// Tracer makes a span of every call that Interceptors let in, those of the standard services aside; nil: of none.
	Tracer trace.Tracer
	// Credentials are what connections are made with; nil: plaintext.
	Credentials credentials.TransportCredentials
	// Interceptors stand between the server's own and the handlers of all methods, the standard services' too, the first outermost.
	// A call that they refuse has its id and its line and may be refused with details; no message of it has been read.
	Interceptors []grpc.StreamServerInterceptor
	// Unmarshal decodes the requests of generated handlers, as proto.Unmarshal does. nil: that does it.
	Unmarshal func(raw []byte, m proto.Message) error
	// Options are appended to the server's own.
	Options []grpc.ServerOption
}

// Server is a gRPC server with health, reflection and channelz. Register services, then Serve once.
type Server struct {
	cfg      ServerConfig
	logger   hclog.Logger
	grpc     *grpc.Server
	health   *health.Server
	draining context.Context // ends when Serve begins to stop
	drain    context.CancelFunc
	panics   atomic.Uint64
	waiting  budget
	within   *bufconn.Listener // nil: there are no connections from within
	gate     *intake.Gate      // of the requests that are being received
	sends    *sends            // of what is being sent
	turns    turns
	lines    flood.Bound // of calls that were refused
	refused  refused     // connections
}

// NewServer makes a server that does not listen yet. Its services report SERVING from Serve on, unless SetReady(false)
// came before.
func NewServer(cfg ServerConfig, logger hclog.Logger) *Server {
	if cfg.MaxReceiveBytes == 0 {
		cfg.MaxReceiveBytes = DefaultMaxReceiveBytes
	}
	if cfg.MaxWaitingBytes == 0 {
		cfg.MaxWaitingBytes = DefaultMaxWaitingBytes
	}
	if cfg.Unmarshal == nil {
		cfg.Unmarshal = proto.Unmarshal
	}
	s := &Server{cfg: cfg, logger: logger.Named("rpc"), health: health.NewServer(), turns: newTurns()}
	if cfg.MaxReceivingBytes == 0 {
		cfg.MaxReceivingBytes = receivingRequests * int64(cfg.MaxReceiveBytes)
	}
	if cfg.SendStall == 0 {
		cfg.SendStall = DefaultSendStall
	}
	if cfg.MaxSendingBytes == 0 {
		cfg.MaxSendingBytes = DefaultMaxSendingBytes
	}
	s.sends = newSends(&cfg, s.logger)
	s.gate = intake.NewGate(max(cfg.MaxReceivingBytes, int64(cfg.MaxReceiveBytes)))
	s.waiting.max = max(cfg.MaxWaitingBytes, int64(cfg.MaxReceiveBytes))
	s.draining, s.drain = context.WithCancel(context.Background())
	creds, readBuffer := cfg.Credentials, plainReadBuffer
	if creds != nil {
		readBuffer = secureReadBuffer
		creds = withinCredentials{creds, &s.refused}
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(serverCodec{FrameCodec().(frameCodec), s.turns, cfg.Unmarshal}),
		grpc.MaxRecvMsgSize(cfg.MaxReceiveBytes),
		grpc.MaxSendMsgSize(maxSendBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.Creds(intake.Credentials(creds)),
		grpc.InTapHandle(intake.Tap),
		grpc.StaticStreamWindowSize(intake.Window),
		grpc.StaticConnWindowSize(serverConnWindow),
		experimental.BufferPool(&pieces),
		grpc.ReadBufferSize(readBuffer),
		grpc.UnknownServiceHandler(func(impl any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return s.observed(Method{}, impl, stream, s.chain(&grpc.StreamServerInfo{FullMethod: flood.Clip(method)}, false, s.unknown))
		}),
	}
	options = append(options, serverKeepalives.options()...)
	s.grpc = grpc.NewServer(append(options, cfg.Options...)...)
	healthpb.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	channelz.RegisterChannelzServiceToServer(s)
	return s
}

// RegisterService registers a service. Every method runs as a stream through the server's chain, also a unary one: on
// the wire they are the same, and grpc-go answers a unary request that is too large or malformed before any unary
// interceptor sees it.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	streamed := *desc
	streamed.Methods = nil
	streamed.Streams = nil
	add := func(d grpc.StreamDesc) {
		is := Method{"/" + desc.ServiceName + "/" + d.StreamName, d.ClientStreams, d.ServerStreams}
		handler := s.chain(&grpc.StreamServerInfo{
			FullMethod: is.Name, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams,
		}, !infrastructure(is.Name), d.Handler)
		d.Handler = func(impl any, stream grpc.ServerStream) error {
			return s.observed(is, impl, s.receiving(is, stream), handler)
		}
		streamed.Streams = append(streamed.Streams, d)
	}
	for _, d := range desc.Streams {
		add(d)
	}
	for _, m := range desc.Methods {
		add(grpc.StreamDesc{StreamName: m.MethodName, Handler: func(impl any, stream grpc.ServerStream) error {
			response, err := m.Handler(impl, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(response)
		}})
	}
	s.grpc.RegisterService(&streamed, impl)
}

// chain puts a handler behind the interceptors, the first outermost. traced is whether its calls may have spans.
func (s *Server) chain(info *grpc.StreamServerInfo, traced bool, handler grpc.StreamHandler) grpc.StreamHandler {
	interceptors := append([]grpc.StreamServerInterceptor{s.enter, s.logging(), s.recovery(), s.refine}, s.cfg.Interceptors...)
	if traced && s.cfg.Tracer != nil {
		interceptors = append(interceptors, s.trace)
	}
	innermost := handler
	handler = func(impl any, stream grpc.ServerStream) error {
		if c := callOf(stream.Context()); c != nil {
			c.bare.until(stream.Context()) // an interceptor may end it
		}
		return innermost(impl, stream)
	}
	for _, in := range slices.Backward(interceptors) {
		next := handler
		handler = func(impl any, stream grpc.ServerStream) error { return in(impl, stream, info, next) }
	}
	return handler
}

// GetServiceInfo lists what is registered, for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// SetReady sets what health says of the server ("") and of each of its services. After Serve has begun to stop it has
// no effect.
func (s *Server) SetReady(ready bool) {
	to := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		to = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", to)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, to)
	}
}

// SetServiceReady sets what health says of one service; "" is the server.
func (s *Server) SetServiceReady(service string, ready bool) {
	to := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		to = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, to)
}

// Panics counts the handlers that panicked.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// enter gives the call its id and takes its request out of the count in the end. It ends calls of standard services (health
// watchers, reflection) when the server stops: they would last until their callers leave.
func (s *Server) enter(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c := newCall(stream, s.draining.Done(), &s.waiting, s.sends, s.turns)
	defer c.end()
	defer c.bare.returned.Store(true) // before the transport ends the stream's context
	ctx := context.WithValue(stream.Context(), callKey{}, c)
	if infrastructure(info.FullMethod) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(s.draining, func() { time.AfterFunc(watchersNotice, cancel) })
		defer stop()
	}
	return next(impl, &serverStream{ServerStream: c.bare, ctx: ctx})
}

// logging writes one line when a call ends.
func (s *Server) logging() grpc.StreamServerInterceptor {
	return logging.StreamServerInterceptor(callLogger(s.logger, &s.lines),
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(levelOf),
		logging.WithErrorFields(errorFields),
		logging.WithFieldsFromContextAndCallMeta(callFields),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
	)
}

// recovery turns a panic into INTERNAL for its own call; the stack goes to the log and not to the caller.
func (s *Server) recovery() grpc.StreamServerInterceptor {
	return recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		s.panics.Add(1)
		id := RequestID(ctx)
		s.logger.Error("handler panicked", "request_id", id, "error", clip(fmt.Sprint(p)), "stack", string(debug.Stack()))
		return Fault{
			Code: codes.Internal, Domain: s.cfg.Domain, Reason: reason.Panic,
			Message: fmt.Sprintf("request %s failed inside the server, other requests go on: report it with the server's log", id),
		}.Err()
	}))
}

// refine refuses what is compressed, checks what is received, makes every error a status of bounded text and sets the pushback trailer.
func (s *Server) refine(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := uncompressed(stream.Context(), s.cfg.Domain)
	if err == nil {
		err = next(impl, &checkedStream{ServerStream: stream, domain: s.cfg.Domain})
	}
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.FromContextError(err).Err() // an end of the call's context is no fault of this program
	}
	if atDeadline(stream.Context(), err) {
		err = Fault{
			Code: codes.DeadlineExceeded, Domain: s.cfg.Domain, Reason: reason.DeadlineExceeded, Message: context.DeadlineExceeded.Error(),
		}.Err()
	}
	err = bounded(err)
	if retry := detail[*errdetails.RetryInfo](err); retry != nil {
		ms := retry.GetRetryDelay().AsDuration().Milliseconds()
		stream.SetTrailer(metadata.Pairs(PushbackTrailer, strconv.FormatInt(ms, 10)))
	}
	return err
}

// deadlineSlack is how much earlier than the server's timer a caller's own may end a call at its deadline.
const deadlineSlack = 100 * time.Millisecond

// atDeadline reports whether a call that was canceled has in truth ended by its deadline. A caller has the same deadline, and cancels the
// stream when it passes: that message may overtake the server's timer.
func atDeadline(ctx context.Context, err error) bool {
	if info := Info(err); status.Code(err) != codes.Canceled || info != nil && info.GetReason() != reason.Cancelled {
		return false
	}
	deadline, has := ctx.Deadline()
	return has && time.Until(deadline) < deadlineSlack
}

// unknown answers methods that nobody registered.
func (s *Server) unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return Fault{
		Code: codes.Unimplemented, Domain: s.cfg.Domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("this server has no method %s: ask its reflection service what it has", method),
		Metadata: map[string]string{"method": method},
	}.Err()
}

// serverStream is a stream with a context of its own.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// checkedStream refuses what it receives by the rules of this package.
type checkedStream struct {
	grpc.ServerStream
	domain string
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if c := callOf(s.Context()); c != nil {
		if err := c.hold(m, s.domain); err != nil {
			free(m)
			return err
		}
	}
	pm, ok := m.(proto.Message)
	if l, lent := m.(*Lent); lent {
		pm, ok = l.Message, true
	}
	if !ok {
		return nil
	}
	err := check(pm, s.domain)
	if err != nil {
		free(m)
	}
	return err
}

// free gives back what was received and is refused.
func free(m any) {
	switch m := m.(type) {
	case *Frame:
		m.Free()
	case *Lent:
		m.Free()
	}
}
