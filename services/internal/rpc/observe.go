package rpc

import (
	"time"

	"google.golang.org/grpc"
)

// Method is a method of a server.
type Method struct {
	// Name is "/package.Service/Method"; empty for every method that nobody registered.
	Name string
	// ClientStreams and ServerStreams are whether either side sends a stream.
	ClientStreams, ServerStreams bool
}

// CallObserver is told of every call, by the call's own goroutine: its methods return at once.
type CallObserver interface {
	// Began: a call has come.
	Began(Method)
	// Ended: it has ended so long after that, with the status that its caller gets; nil is OK.
	Ended(m Method, err error, took time.Duration)
}

// observed tells the observer, if there is one, of a call that next serves.
func (s *Server) observed(m Method, impl any, stream grpc.ServerStream, next grpc.StreamHandler) error {
	if s.cfg.Observer == nil {
		return next(impl, stream)
	}
	begun := time.Now()
	s.cfg.Observer.Began(m)
	err := next(impl, stream)
	s.cfg.Observer.Ended(m, err, time.Since(begun))
	return err
}

// Domain is that of the statuses that the server itself makes.
func (s *Server) Domain() string { return s.cfg.Domain }

// HeldBytes is how many bytes of requests handlers hold.
func (s *Server) HeldBytes() int64 { return s.waiting.used.Load() }

// MaxHeldBytes is how many they may.
func (s *Server) MaxHeldBytes() int64 { return s.waiting.max }

// ReceivingBytes is how many bytes the large requests have that are being received.
func (s *Server) ReceivingBytes() int64 { return s.gate.Used() }

// MaxReceivingBytes is how many they may have.
func (s *Server) MaxReceivingBytes() int64 { return s.gate.Max() }

// SendingBytes is how many bytes the messages above 1 KiB have that are being sent.
func (s *Server) SendingBytes() int64 { return s.sends.streamed.Used() + s.sends.large.Used() }

// MaxSendingBytes is how many they may have.
func (s *Server) MaxSendingBytes() int64 { return s.sends.streamed.Max() + s.sends.large.Max() }

// WaitingToSend is how many messages wait for room to be sent in.
func (s *Server) WaitingToSend() int { return s.sends.streamed.Waiting() + s.sends.large.Waiting() }

// StalledCalls counts the calls that ended because their answer did not move.
func (s *Server) StalledCalls() uint64 { return s.sends.stalled.Load() }

// WaitingToReceive is how many large requests wait for room to be received in.
func (s *Server) WaitingToReceive() int { return s.gate.Waiting() }
