package rpc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/ratelog"
)

// levels holds the log level of a call by its code. A degraded service is Warn, an error of this
// program Error.
var levels = map[codes.Code]logging.Level{
	codes.Unavailable: logging.LevelWarn,
	codes.Unknown:     logging.LevelError,
	codes.Internal:    logging.LevelError,
	codes.DataLoss:    logging.LevelError,
}

// levelOf returns the level of a code, Info by default.
func levelOf(code codes.Code) logging.Level { return levels[code] }

// refusalCodes are the codes of calls that end because of the caller or the request. They cost the
// caller nothing, so the rate of their lines is limited.
var refusalCodes = map[string]bool{
	codes.InvalidArgument.String(): true, codes.NotFound.String(): true, codes.PermissionDenied.String(): true,
	codes.Unauthenticated.String(): true, codes.ResourceExhausted.String(): true, codes.FailedPrecondition.String(): true,
	codes.Unimplemented.String(): true,
}

// routine reports whether a call is one that programs repeat and that changes nothing: a list, a
// watch or a health stream that did not fail. A watch ends when its caller leaves, so Canceled is
// not a failure.
func routine(method, code string) bool {
	reads := strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Watch") || method == "Health"
	return reads && (code == codes.OK.String() || code == codes.Canceled.String())
}

// callLogger writes the one line of a finished call. Calls of standard services and routine calls
// are Debug, unless the caller has no right to make them. The lines of refused calls are limited
// for each code and reason. Texts are clipped like those of a status.
func callLogger(logger hclog.Logger, limiter *ratelog.Limiter) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		lineLevel := hclog.Info
		switch {
		case level >= logging.LevelError:
			lineLevel = hclog.Error
		case level >= logging.LevelWarn:
			lineLevel = hclog.Warn
		}
		code := fieldOf(fields, "grpc.code")
		refused := code == codes.PermissionDenied.String() || code == codes.Unauthenticated.String()
		if !refused && infrastructure("/"+fieldOf(fields, logging.ServiceFieldKey)) || routine(fieldOf(fields, logging.MethodFieldKey), code) {
			lineLevel = hclog.Debug
		}
		if refusalCodes[code] {
			suppressed, ok := limiter.Allow(code + " " + fieldOf(fields, "reason"))
			if !ok {
				return
			}
			if suppressed > 0 {
				fields = append(fields, "refused_without_a_line", suppressed)
			}
		}
		logger.Log(lineLevel, msg, printable(fields)...)
	})
}

// printable returns the fields of a line with texts clipped, and the duration as a number, also in
// JSON. It drops the start time, because the line has the time of the end.
func printable(fields []any) []any {
	out := make([]any, 0, len(fields))
	for i := 0; i+1 < len(fields); i += 2 {
		value := fields[i+1]
		switch text, isText := value.(string); {
		case fields[i] == "grpc.start_time":
			continue
		case fields[i] == "grpc.time_ms" && isText:
			if ms, err := strconv.ParseFloat(text, 64); err == nil {
				value = ms
			}
		case isText:
			if _, message, found := strings.Cut(text, " desc = "); found && fields[i] == "grpc.error" {
				text = message // the line has the code
			}
			value = clip(text)
		}
		out = append(out, fields[i], value)
	}
	return out
}

// fieldOf returns a log field as text, or "" if it is missing.
func fieldOf(fields []any, key string) string {
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == key {
			return fmt.Sprint(fields[i+1])
		}
	}
	return ""
}

// callFields returns the request id and the annotations.
func callFields(ctx context.Context, _ interceptors.CallMeta) logging.Fields {
	if c := callOf(ctx); c != nil {
		return c.logFields()
	}
	return nil
}

// errorFields returns the reason and the domain of a failed call.
func errorFields(err error) logging.Fields {
	if status.Code(err) == codes.OK {
		return nil
	}
	if info := Info(err); info != nil {
		return logging.Fields{"reason", info.GetReason(), "domain", info.GetDomain()}
	}
	return nil
}

// infrastructure reports whether a method belongs to a standard service: health, reflection,
// channelz, load reports.
func infrastructure(method string) bool {
	return strings.HasPrefix(method, "/grpc.") || strings.HasPrefix(method, "/xds.")
}

// LogGRPC sends grpc-go's own warnings and errors to logger, for the whole process. Call it once,
// before any server or connection exists.
func LogGRPC(logger hclog.Logger) { grpclog.SetLoggerV2(grpcLog{logger.Named("grpc")}) }

// grpcLog is a logger of grpc-go that writes to hclog. grpc-go's errors are failed connections at
// most, so they are Warn. Its warnings are routine, so they are Debug.
type grpcLog struct{ hclog.Logger }

func (grpcLog) Info(...any)            {}
func (grpcLog) Infoln(...any)          {}
func (grpcLog) Infof(string, ...any)   {}
func (l grpcLog) Warning(args ...any)  { l.Logger.Debug(fmt.Sprint(args...)) }
func (l grpcLog) Warningln(a ...any)   { l.Logger.Debug(strings.TrimSpace(fmt.Sprintln(a...))) }
func (l grpcLog) Error(args ...any)    { l.Logger.Warn(fmt.Sprint(args...)) }
func (l grpcLog) Errorln(args ...any)  { l.Logger.Warn(strings.TrimSpace(fmt.Sprintln(args...))) }
func (l grpcLog) Fatal(args ...any)    { l.fatal(fmt.Sprint(args...)) }
func (l grpcLog) Fatalln(args ...any)  { l.fatal(strings.TrimSpace(fmt.Sprintln(args...))) }
func (grpcLog) V(int) bool             { return false }
func (l grpcLog) fatal(message string) { l.Logger.Error(message); os.Exit(1) }
func (l grpcLog) Warningf(f string, a ...any) {
	l.Logger.Debug(fmt.Sprintf(f, a...))
}
func (l grpcLog) Errorf(f string, a ...any) { l.Logger.Warn(fmt.Sprintf(f, a...)) }
func (l grpcLog) Fatalf(f string, a ...any) { l.fatal(fmt.Sprintf(f, a...)) }
