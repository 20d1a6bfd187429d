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
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/internal/ingress"
	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
)

// Limits of every server. Static windows turn off grpc-go's bandwidth estimator, whose pings cost
// as much as small messages.
const (
	// DefaultMaxReceiveBytes bounds one request.
	DefaultMaxReceiveBytes = 16 << 20
	// ResumeBytes is what workers accept above that: a scheduler that resumes a stream adds what
	// was delivered to its request.
	ResumeBytes = 1 << 20
	// receivingRequests sets the default of MaxReceivingBytes, in requests of MaxReceiveBytes.
	receivingRequests = 8
	// maxSendBytes bounds one response.
	maxSendBytes = 64 << 20
	// serverConnWindow is the flow-control window of a connection. The window of each stream is
	// ingress.Window.
	serverConnWindow = 4 << 20
	// The read buffer of a plaintext connection is taken only while there is data, and a large one
	// reads vectors in few system calls. That of a TLS connection is held all the time; a TLS
	// record has 16 KiB.
	plainReadBuffer, secureReadBuffer = 64 << 10, 32 << 10
	// maxHeaderBytes bounds the headers of one call. Tokens and traces take some hundred bytes.
	maxHeaderBytes = 16 << 10
	// handshakeTimeout bounds the time until a new connection speaks HTTP/2.
	handshakeTimeout = 10 * time.Second
	// maxPending bounds the connections that have not sent an HTTP/2 frame. An honest client needs
	// about a millisecond. Each takes about 80 kB.
	maxPending = 512
	// maxConcurrentStreams is twice the maximum that a scheduler sends a worker on one connection
	// by default.
	maxConcurrentStreams = 1 << 15
	// streamWorkers is the number of goroutines that wait for calls, with stacks that earlier calls
	// have grown. Further calls get new goroutines.
	streamWorkers = 32
	// watcherGrace is the time in which health watchers can see NOT_SERVING before their calls end.
	watcherGrace = 100 * time.Millisecond
)

// ServerConfig configures a Server.
type ServerConfig struct {
	// Domain of the statuses that the server itself makes: WorkerDomain or SchedulerDomain.
	// Required.
	Domain string
	// MaxReceiveBytes bounds one request. 0: DefaultMaxReceiveBytes.
	MaxReceiveBytes int
	// MaxMethodBytes bounds one request of a method, by the method's full name, below
	// MaxReceiveBytes.
	MaxMethodBytes map[string]int
	// MaxWaitingBytes bounds the requests that all handlers hold together; see ReleaseRequest. It
	// is at least MaxReceiveBytes. 0: DefaultMaxWaitingBytes.
	MaxWaitingBytes int64
	// MaxReceivingBytes bounds the requests above 32 KiB that are being received. It is at least
	// MaxReceiveBytes. 0: eight times that.
	MaxReceivingBytes int64
	// MaxSendingBytes bounds the messages above 1 KiB that are being sent. One of the largest
	// always passes. 0: DefaultMaxSendingBytes.
	MaxSendingBytes int64
	// SendStall is the time after which a call whose response makes no progress ends with
	// SLOW_READER. 0: DefaultSendStall.
	SendStall time.Duration
	// MaxConnectionsPerAddress bounds the connections of one address. 0: no bound.
	MaxConnectionsPerAddress int
	// DrainTimeout bounds the wait for running calls when the server stops. 0: they are cut off at
	// once.
	DrainTimeout time.Duration
	// Observer is notified of every call. It may be nil.
	Observer CallObserver
	// Tracer starts a span for every call that Interceptors admit, except those of standard
	// services. nil: no spans.
	Tracer trace.Tracer
	// Credentials secure the connections. nil: plaintext.
	Credentials credentials.TransportCredentials
	// Interceptors run between the server's own and the handlers of all methods, standard services
	// included. The first is the outermost. A call that they refuse has an id and a log line, and
	// no message of it was read.
	Interceptors []grpc.StreamServerInterceptor
	// Unmarshal decodes the requests of generated handlers. nil: proto.Unmarshal.
	Unmarshal func(raw []byte, m proto.Message) error
	// Options are appended to the server's own.
	Options []grpc.ServerOption
}

// Server is a gRPC server with health, reflection and channelz. Register services, then call Serve
// once.
type Server struct {
	cfg           ServerConfig
	logger        hclog.Logger
	grpc          *grpc.Server
	health        *health.Server
	draining      context.Context // ends when Serve begins to stop
	drain         context.CancelFunc
	panics        atomic.Uint64
	requests      requestBudget
	inProcess     *memoryListener // nil if InProcessConn was not called
	receiveBudget *ingress.Budget // of large requests that are being received
	sendBudget    *sendBudget     // of messages that are being sent
	decodeSlots   decodeSlots
	lines         ratelog.Limiter // limits the lines of refused calls
	refusals      connRefusals    // counts refused connections
}

// NewServer returns a server that does not listen yet. Its services report SERVING from Serve on,
// unless SetReady(false) is called before.
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
	s := &Server{cfg: cfg, logger: logger.Named("rpc"), health: health.NewServer(), decodeSlots: newDecodeSlots()}
	if cfg.MaxReceivingBytes == 0 {
		cfg.MaxReceivingBytes = receivingRequests * int64(cfg.MaxReceiveBytes)
	}
	if cfg.SendStall == 0 {
		cfg.SendStall = DefaultSendStall
	}
	if cfg.MaxSendingBytes == 0 {
		cfg.MaxSendingBytes = DefaultMaxSendingBytes
	}
	s.sendBudget = newSendBudget(&cfg, s.logger)
	s.receiveBudget = ingress.NewBudget(max(cfg.MaxReceivingBytes, int64(cfg.MaxReceiveBytes)))
	s.requests.max = max(cfg.MaxWaitingBytes, int64(cfg.MaxReceiveBytes))
	s.draining, s.drain = context.WithCancel(context.Background())
	creds, readBuffer := cfg.Credentials, plainReadBuffer
	if creds != nil {
		readBuffer = secureReadBuffer
		creds = inProcessCredentials{creds, &s.refusals}
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(serverCodec{FrameCodec().(frameCodec), s.decodeSlots, cfg.Unmarshal}),
		grpc.MaxRecvMsgSize(cfg.MaxReceiveBytes),
		grpc.MaxSendMsgSize(maxSendBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.Creds(ingress.Credentials(creds)),
		grpc.InTapHandle(ingress.Tap),
		grpc.StaticStreamWindowSize(ingress.Window),
		grpc.StaticConnWindowSize(serverConnWindow),
		experimental.BufferPool(&buffers),
		grpc.ReadBufferSize(readBuffer),
		grpc.UnknownServiceHandler(func(impl any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return s.observe(Method{}, impl, stream, s.chain(&grpc.StreamServerInfo{FullMethod: ratelog.Clip(method)}, false, s.unknownMethod))
		}),
	}
	options = append(options, serverKeepalives.options()...)
	s.grpc = grpc.NewServer(append(options, cfg.Options...)...)
	healthpb.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	channelz.RegisterChannelzServiceToServer(s)
	return s
}

// RegisterService implements grpc.ServiceRegistrar. Every method runs as a stream through the
// server's chain, also a unary one. On the wire they are the same, and grpc-go would answer a unary
// request that is too large or malformed before any interceptor sees it.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	streamed := *desc
	streamed.Methods = nil
	streamed.Streams = nil
	add := func(d grpc.StreamDesc) {
		m := Method{"/" + desc.ServiceName + "/" + d.StreamName, d.ClientStreams, d.ServerStreams}
		handler := s.chain(&grpc.StreamServerInfo{
			FullMethod: m.Name, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams,
		}, !infrastructure(m.Name), d.Handler)
		d.Handler = func(impl any, stream grpc.ServerStream) error {
			return s.observe(m, impl, s.newReceiver(m, stream), handler)
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

// chain wraps a handler in the interceptors, the first outermost. traced reports whether its calls
// may have spans.
func (s *Server) chain(info *grpc.StreamServerInfo, traced bool, handler grpc.StreamHandler) grpc.StreamHandler {
	interceptors := append([]grpc.StreamServerInterceptor{s.beginCall, s.logging(), s.recovery(), s.normalizeErrors}, s.cfg.Interceptors...)
	if traced && s.cfg.Tracer != nil {
		interceptors = append(interceptors, s.trace)
	}
	innermost := handler
	handler = func(impl any, stream grpc.ServerStream) error {
		if c := callOf(stream.Context()); c != nil {
			c.sender.setContext(stream.Context()) // an interceptor may have derived one
		}
		return innermost(impl, stream)
	}
	for _, in := range slices.Backward(interceptors) {
		next := handler
		handler = func(impl any, stream grpc.ServerStream) error { return in(impl, stream, info, next) }
	}
	return handler
}

// GetServiceInfo lists the registered services, for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// SetReady sets the health of the server ("") and of each of its services. It has no effect after
// Serve has begun to stop.
func (s *Server) SetReady(ready bool) {
	serving := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		serving = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", serving)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, serving)
	}
}

// SetServiceReady sets the health of one service, or of the server ("").
func (s *Server) SetServiceReady(service string, ready bool) {
	serving := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		serving = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, serving)
}

// Panics returns the number of handlers that panicked.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// beginCall is the outermost interceptor. It gives the call its id and releases its request at the
// end. It ends calls of standard services (health watchers, reflection) when the server stops,
// because they would last until their callers leave.
func (s *Server) beginCall(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c := newCall(stream, s.draining.Done(), &s.requests, s.sendBudget, s.decodeSlots)
	defer c.close()
	defer c.sender.returned.Store(true) // before the transport ends the stream's context
	ctx := context.WithValue(stream.Context(), callKey{}, c)
	if infrastructure(info.FullMethod) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(s.draining, func() { time.AfterFunc(watcherGrace, cancel) })
		defer stop()
	}
	return next(impl, &serverStream{ServerStream: c.sender, ctx: ctx})
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

// recovery turns a panic into INTERNAL for its own call. The stack goes to the log and not to the
// caller.
func (s *Server) recovery() grpc.StreamServerInterceptor {
	return recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		s.panics.Add(1)
		id := RequestID(ctx)
		s.logger.Error("handler panicked", "request_id", id, "error", clip(fmt.Sprint(p)), "stack", string(debug.Stack()))
		return Error{
			Code: codes.Internal, Domain: s.cfg.Domain, Reason: reason.Panic,
			Message: fmt.Sprintf("request %s failed inside the server, other requests continue: report it with the server's log", id),
		}.Err()
	}))
}

// normalizeErrors refuses compressed calls, checks received messages, turns every error into a
// status with bounded texts, and sets the pushback trailer.
func (s *Server) normalizeErrors(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := uncompressed(stream.Context(), s.cfg.Domain)
	if err == nil {
		err = next(impl, &checkedStream{ServerStream: stream, domain: s.cfg.Domain})
	}
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); !ok {
		// the end of the call's context is not an error of this program
		err = status.FromContextError(err).Err()
	}
	if endedByDeadline(stream.Context(), err) {
		err = Error{
			Code: codes.DeadlineExceeded, Domain: s.cfg.Domain, Reason: reason.DeadlineExceeded, Message: context.DeadlineExceeded.Error(),
		}.Err()
	}
	err = clipMessage(err)
	if retry := detail[*errdetails.RetryInfo](err); retry != nil {
		ms := retry.GetRetryDelay().AsDuration().Milliseconds()
		stream.SetTrailer(metadata.Pairs(PushbackTrailer, strconv.FormatInt(ms, 10)))
	}
	return err
}

// deadlineSlack is how much earlier than the server's timer a caller's timer may end a call at its
// deadline.
const deadlineSlack = 100 * time.Millisecond

// endedByDeadline reports whether a canceled call ended by its deadline. The caller has the same
// deadline and cancels the stream when it passes. That message may overtake the server's timer.
func endedByDeadline(ctx context.Context, err error) bool {
	if info := Info(err); status.Code(err) != codes.Canceled || info != nil && info.GetReason() != reason.Cancelled {
		return false
	}
	deadline, has := ctx.Deadline()
	return has && time.Until(deadline) < deadlineSlack
}

// unknownMethod answers calls of methods that are not registered.
func (s *Server) unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return Error{
		Code: codes.Unimplemented, Domain: s.cfg.Domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("this server has no method %s: its reflection service lists what it has", method),
		Metadata: map[string]string{"method": method},
	}.Err()
}

// serverStream is a stream with its own context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// checkedStream counts and checks the messages that it receives.
type checkedStream struct {
	grpc.ServerStream
	domain string
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if c := callOf(s.Context()); c != nil {
		if err := c.holdRequest(m, s.domain); err != nil {
			free(m)
			return err
		}
	}
	pm, ok := m.(proto.Message)
	if b, isBorrowed := m.(*BorrowedMessage); isBorrowed {
		pm, ok = b.Message, true
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

// free frees a received message that is refused.
func free(m any) {
	switch m := m.(type) {
	case *Frame:
		m.Free()
	case *BorrowedMessage:
		m.Free()
	}
}
