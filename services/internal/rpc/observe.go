package rpc

import (
	"time"

	"google.golang.org/grpc"
)

// Method describes a method of a server.
type Method struct {
	// Name is "/package.Service/Method", or "" for every method that is not registered.
	Name string
	// ClientStreams and ServerStreams report which sides send a stream.
	ClientStreams, ServerStreams bool
}

// CallObserver is notified of every call in the call's own goroutine. Its methods must return at
// once.
type CallObserver interface {
	// Began reports that a call has arrived.
	Began(Method)
	// Ended reports that it has ended after the time took. err is the status that the caller gets;
	// nil is OK.
	Ended(m Method, err error, took time.Duration)
}

// observe runs a call and notifies the observer, if there is one.
func (s *Server) observe(m Method, impl any, stream grpc.ServerStream, next grpc.StreamHandler) error {
	if s.cfg.Observer == nil {
		return next(impl, stream)
	}
	begun := time.Now()
	s.cfg.Observer.Began(m)
	err := next(impl, stream)
	s.cfg.Observer.Ended(m, err, time.Since(begun))
	return err
}

// Domain returns the domain of the statuses that the server itself makes.
func (s *Server) Domain() string { return s.cfg.Domain }

// HeldBytes returns the bytes of requests that handlers hold.
func (s *Server) HeldBytes() int64 { return s.requests.used.Load() }

// MaxHeldBytes returns the bound of HeldBytes.
func (s *Server) MaxHeldBytes() int64 { return s.requests.max }

// ReceivingBytes returns the bytes of large requests that are being received.
func (s *Server) ReceivingBytes() int64 { return s.receiveBudget.Used() }

// MaxReceivingBytes returns the bound of ReceivingBytes.
func (s *Server) MaxReceivingBytes() int64 { return s.receiveBudget.Max() }

// SendingBytes returns the bytes of messages above 1 KiB that are being sent.
func (s *Server) SendingBytes() int64 {
	return s.sendBudget.streamed.Used() + s.sendBudget.large.Used()
}

// MaxSendingBytes returns the bound of SendingBytes.
func (s *Server) MaxSendingBytes() int64 {
	return s.sendBudget.streamed.Max() + s.sendBudget.large.Max()
}

// WaitingToSend returns the number of messages that wait for the send budget.
func (s *Server) WaitingToSend() int {
	return s.sendBudget.streamed.Waiting() + s.sendBudget.large.Waiting()
}

// StalledCalls returns the number of calls that ended because their response made no progress.
func (s *Server) StalledCalls() uint64 { return s.sendBudget.stalled.Load() }

// WaitingToReceive returns the number of large requests that wait for the receive budget.
func (s *Server) WaitingToReceive() int { return s.receiveBudget.Waiting() }
