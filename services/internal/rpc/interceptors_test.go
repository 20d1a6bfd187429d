package rpc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestInterceptorsRunInOrder(t *testing.T) {
	var seen []string
	passes := func(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		require.NotEmpty(t, rpc.RequestID(stream.Context()), "behind the server's own")
		seen = append(seen, info.FullMethod)
		return next(impl, stream)
	}
	refuses := func(_ any, _ grpc.ServerStream, info *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		if info.FullMethod == "/panic/panic" {
			panic("told to")
		}
		return rpc.Error{Code: codes.PermissionDenied, Domain: rpc.WorkerDomain, Reason: reason.CallerNotAllowed, Message: "no"}.Err()
	}
	conn := pair(t, rpc.ServerConfig{Interceptors: []grpc.StreamServerInterceptor{passes, refuses}})
	methods := []string{
		pb.InferenceService_Tokenize_FullMethodName, pb.InferenceService_Generate_FullMethodName, healthpb.Health_Check_FullMethodName,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.channelz.v1.Channelz/GetServers", "/not/there",
	}
	for _, method := range methods {
		// Malformed, so that a chain that reads it first would report it.
		err := conn.Invoke(within(t), method, raw([]byte{0xff}), raw(nil), grpc.ForceCodecV2(rpc.FrameCodec()))
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", method, err)
		require.Equal(t, reason.CallerNotAllowed, rpc.Reason(err))
	}
	require.Equal(t, methods, seen)
	require.Equal(t, reason.Panic, rpc.Reason(conn.Invoke(within(t), "/panic/panic", raw(nil), raw(nil), grpc.ForceCodecV2(rpc.FrameCodec()))))
}
