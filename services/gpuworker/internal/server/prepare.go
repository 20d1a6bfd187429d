package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"time"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// prepare turns a request whose values are in range into the worker's terms for one model: tokens, parameters, ends.
func (s *Server) prepare(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance) (generate.Request, error) {
	if err := expectations(in, inst); err != nil {
		return generate.Request{}, err
	}
	if err := invalid(checkAgainst(in, inst)); err != nil {
		return generate.Request{}, err
	}
	prompt, err := s.promptOf(ctx, in, inst)
	if err != nil {
		return generate.Request{}, err
	}
	if room := inst.Loop.MaxTokens(len(prompt)); room < 0 {
		return generate.Request{}, fmt.Errorf("%w: it has %d tokens; this model serves at most %d", batch.ErrTooLong, len(prompt), inst.Context)
	}
	if want := in.ExpectPromptDigest; want != nil && *want != promptDigest(prompt) {
		return generate.Request{}, fmt.Errorf("%w: the prompt's digest is %s, expected %s", errExpectation, promptDigest(prompt), *want)
	}
	stopping, response := in.GetStopping(), in.GetResponse()
	r := generate.Request{
		Prompt: prompt, Sequences: 1, MaxTokens: math.MaxInt32, PromptTopN: -1,
		Stop: stopping.GetStop(), IncludeStop: stopping.GetIncludeStopInOutput(),
		NoText: response.GetTokenIdsOnly(), Progress: response.GetProgress(),
	}
	if in.GetPromptClass() == pb.KernelClass_KERNEL_CLASS_DECODE {
		r.Class = engine.Decode
	}
	if stopping != nil && stopping.MaxTokens != nil {
		r.MaxTokens = int(*stopping.MaxTokens)
	}
	if response != nil && response.PromptLogprobs != nil {
		r.PromptTopN = int(*response.PromptLogprobs)
	}
	for _, id := range stopping.GetStopTokenIds() {
		r.StopIDs = append(r.StopIDs, int32(id))
	}
	if !stopping.GetIgnoreEos() {
		r.StopIDs = append(r.StopIDs, inst.Facts.EndIDs...)
	}
	slices.Sort(r.StopIDs)
	r.StopIDs = slices.Compact(r.StopIDs)
	r.Params = params(in)
	if s := in.GetSampling(); s != nil && s.NumSequences != nil {
		r.Sequences = int(*s.NumSequences)
	}
	if r.Params.MinTokens > 0 {
		r.Params.Suppressed = r.StopIDs
	}
	return r, nil
}

// params are the sampling parameters, unset ones at their defaults. A request without a seed gets one.
func params(in *pb.GenerateRequest) engine.SlotParams {
	s := in.GetSampling()
	if s == nil {
		s = &pb.Sampling{}
	}
	p := engine.SlotParams{
		MinTokens: in.GetStopping().GetMinTokens(), TopN: in.GetResponse().GetOutputCandidates(),
		Temperature: orDefault(s.Temperature, 1), TopK: orDefault(s.TopK, 0), TopP: orDefault(s.TopP, 1),
		MinP: orDefault(s.MinP, 0), TypicalP: orDefault(s.TypicalP, 1),
		RepetitionPenalty: orDefault(s.RepetitionPenalty, 1), PresencePenalty: orDefault(s.PresencePenalty, 0),
		FrequencyPenalty: orDefault(s.FrequencyPenalty, 0), PenaltyWindow: orDefault(s.PenaltyWindow, -1),
	}
	if s.Seed != nil {
		p.Seed = *s.Seed
	} else {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		p.Seed = binary.LittleEndian.Uint64(b[:])
	}
	for id := range s.GetLogitBias() {
		p.BiasIDs = append(p.BiasIDs, id)
	}
	slices.Sort(p.BiasIDs)
	for _, id := range p.BiasIDs {
		p.BiasValues = append(p.BiasValues, s.GetLogitBias()[id])
	}
	for _, id := range s.GetAllowedTokens().GetIds() {
		p.Allowed = append(p.Allowed, int32(id))
	}
	slices.SortFunc(p.Allowed, cmp.Compare)
	p.Allowed = slices.Compact(p.Allowed)
	return p
}

func expectations(in *pb.GenerateRequest, inst *model.Instance) error {
	if want := in.ExpectModelDigest; want != nil && *want != hex.EncodeToString(inst.Digest[:]) {
		return fmt.Errorf("%w: %q is loaded with %x, expected %s", model.ErrDigest, inst.Name, inst.Digest, *want)
	}
	if want := in.ExpectClassId; want != nil && *want != inst.ClassID {
		return fmt.Errorf("%w: its class is %s, expected %s", errExpectation, inst.ClassID, *want)
	}
	needsText := !in.GetResponse().GetTokenIdsOnly() || in.GetTokenIds() == nil
	if inst.Tokenizer == nil && needsText {
		return fmt.Errorf("%w: %q works by token ids: give token_ids and set response.token_ids_only", errNoTokenizer, inst.Name)
	}
	return nil
}

// checkAgainst lists what is wrong with a request for this model.
func checkAgainst(in *pb.GenerateRequest, inst *model.Instance) []rpc.Violation {
	c, vocabulary := &checker{}, inst.Facts.Vocabulary
	c.ids("token_ids.ids", in.GetTokenIds().GetIds(), vocabulary)
	c.ids("stopping.stop_token_ids", in.GetStopping().GetStopTokenIds(), vocabulary)
	c.ids("sampling.allowed_tokens.ids", in.GetSampling().GetAllowedTokens().GetIds(), vocabulary)
	if s := in.GetSampling(); s != nil {
		c.int("sampling.top_k", s.TopK, 0, int32(vocabulary))
		for id := range s.GetLogitBias() {
			if id < 0 || int(id) >= vocabulary {
				c.add(fmt.Sprintf("sampling.logit_bias[%d]", id), "is no token id, want [0, %d)", vocabulary)
			}
		}
	}
	return c.violations
}

// promptOf is the prompt's token ids.
func (s *Server) promptOf(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance) ([]int32, error) {
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_TokenIds:
		ids := make([]int32, len(input.TokenIds.GetIds()))
		for i, id := range input.TokenIds.GetIds() {
			ids[i] = int32(id)
		}
		return ids, nil
	case *pb.GenerateRequest_Chat:
		now := time.Now()
		if in.AcceptedAt != nil {
			now = in.GetAcceptedAt().AsTime()
		}
		text, err := render(ctx, inst, input.Chat, now)
		if err != nil {
			return nil, err
		}
		return s.encode(ctx, inst, text, tokenizer.EncodeOptions{ParseSpecial: true})
	default:
		return s.encode(ctx, inst, in.GetPrompt(), tokenizer.EncodeOptions{AddSpecial: true})
	}
}

// render writes a conversation as the model's chat template wants it.
func render(ctx context.Context, inst *model.Instance, chat *pb.Chat, now time.Time) (string, error) {
	if inst.Template == nil {
		if inst.TemplateProblem != nil {
			return "", fmt.Errorf("%w that can be used: %w", errNoTemplate, inst.TemplateProblem)
		}
		return "", fmt.Errorf("%w: %q takes prompts and token ids", errNoTemplate, inst.Name)
	}
	input := template.Input{AddGenerationPrompt: orDefault(chat.AddGenerationPrompt, true), Now: now}
	for _, m := range chat.GetMessages() {
		input.Messages = append(input.Messages, template.Message{Role: m.GetRole(), Content: m.GetContent()})
	}
	input.BOS, input.EOS = pieceOf(inst, inst.Facts.BOS), pieceOf(inst, inst.Facts.EOS)
	return inst.Template.Render(ctx, input)
}

func pieceOf(inst *model.Instance, id int32) string {
	piece, ok := inst.Tokenizer.Piece(id)
	if !ok {
		return ""
	}
	return string(piece)
}

// promptDigest is BLAKE3 of the ids as little-endian uint32, in hex.
func promptDigest(ids []int32) string {
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	sum := blake3.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
