package decode

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	defaultTopic      = "outbox.event.{aggregate_type}"
	defaultCheckpoint = "walrelay-checkpoint"
	defaultDeadLetter = "{topic}.DLT"
	plainDeadLetter   = "walrelay.DLT" // where {topic} can't be used

	maxTopic    = 249  // Kafka's limit
	knownTopics = 4096 // cached; more than a cluster is asked to carry for one table
)

// topics makes, checks and interns topic names.
//
// Rows are input that is not trusted: a name is cached only after every rule has
// accepted it, and a cached name is the only one that is returned without a reason.
type topics struct {
	template string
	parts    []part
	allow    []string // globs
	internal []string
	dead     string // glob

	known   map[string]string
	last    string
	scratch [maxTopic + 1]byte
}

// part is a piece of a template: a literal or, if that is empty, a role's value.
type part struct {
	literal string
	role    role
}

func (t *topics) configure(cfg Config) error {
	t.known = make(map[string]string)
	t.template = cfg.Topic
	if t.template == "" {
		t.template = defaultTopic
	}
	if err := t.parse(); err != nil {
		return err
	}
	t.internal = cfg.Internal
	if len(t.internal) == 0 {
		t.internal = []string{defaultCheckpoint}
	}
	dead := cfg.DeadLetter
	if dead == "" {
		dead = defaultDeadLetter
	}
	t.dead = strings.ReplaceAll(dead, "{topic}", "*")
	if strings.Trim(t.dead, "*") == "" || !legalGlob(t.dead) {
		return configError("--dead-letter-topic", dead, "is no topic name; {topic} stands for the event's topic and needs more text beside it")
	}
	for _, glob := range cfg.TopicAllow {
		if !legalGlob(glob) {
			return configError("--topic-allow", glob, "can match no topic: use letters, digits, '.', '_', '-', and the wildcards * and ?")
		}
		t.allow = append(t.allow, glob)
	}
	if len(t.allow) == 0 {
		t.allow = []string{t.pattern()}
	}
	if !strings.Contains(t.pattern(), "*") {
		if reason := t.refuse(t.template); reason != "" {
			return configError("--topic", t.template, "%s", reason)
		}
	}
	return nil
}

// parse cuts the template into parts.
func (t *topics) parse() error {
	rest := t.template
	for rest != "" {
		literal, after, found := strings.Cut(rest, "{")
		if strings.ContainsFunc(literal, notInTopic) {
			return configError("--topic", t.template, "has characters that Kafka doesn't allow in a topic: use letters, digits, '.', '_' and '-'")
		}
		if literal != "" {
			t.parts = append(t.parts, part{literal: literal})
		}
		if !found {
			return nil
		}
		name, tail, closed := strings.Cut(after, "}")
		r, ok := parseRole(name)
		if !closed || !ok || (r != roleAggregateType && r != roleEventType) {
			return configError("--topic", t.template, "has an unknown placeholder; the known ones are {aggregate_type} and {event_type}")
		}
		t.parts = append(t.parts, part{role: r})
		rest = tail
	}
	return nil
}

// pattern is the template with * for each placeholder.
func (t *topics) pattern() string {
	var glob strings.Builder
	for _, p := range t.parts {
		if p.literal == "" {
			glob.WriteByte('*')
		}
		glob.WriteString(p.literal)
	}
	return glob.String()
}

// Topic is where a row with these values would go; a reason says why it can't. nil is
// NULL, or a role without a column.
func (d *Decoder) Topic(topic, aggregateType, eventType *string) (name, reason string) {
	t := &d.m.topics
	if topic != nil && *topic != "" {
		return t.intern([]byte(*topic))
	}
	values := map[role]*string{roleAggregateType: aggregateType, roleEventType: eventType}
	var b []byte
	for _, p := range t.parts {
		switch value := values[p.role]; {
		case p.literal != "":
			b = append(b, p.literal...)
		case value == nil:
			return "", "the row has no topic: " + p.role.String() + " is NULL"
		default:
			b = append(b, *value...)
		}
	}
	return t.intern(b)
}

// intern returns the name as a string, and why it may not be written to, if so;
// the string is then cut to what Kafka would take.
func (t *topics) intern(name []byte) (topic, reason string) {
	if string(name) == t.last && t.last != "" {
		return t.last, ""
	}
	if topic, ok := t.known[string(name)]; ok {
		t.last = topic
		return topic, ""
	}
	if len(name) > maxTopic {
		return string(name[:maxTopic]), fmt.Sprintf("the topic is longer than Kafka's %d bytes: %s", maxTopic, quoted(string(name)))
	}
	topic = string(name)
	if reason := t.refuse(topic); reason != "" {
		return topic, fmt.Sprintf("the topic %s %s", quoted(topic), reason)
	}
	if len(t.known) >= knownTopics {
		clear(t.known)
	}
	t.known[topic] = topic
	t.last = topic
	return topic, ""
}

// refuse says why nothing may be written to the topic; "" = it may.
func (t *topics) refuse(topic string) string {
	switch {
	case !LegalTopic(topic):
		return "is no legal name: 1 to 249 letters, digits, '.', '_' and '-'"
	case topic[0] == '_':
		return "begins with _, as Kafka's internal topics do"
	case topic == plainDeadLetter || match(t.dead, topic):
		return "is a dead-letter topic"
	}
	for _, name := range t.internal {
		if topic == name {
			return "is the relay's own"
		}
	}
	for _, glob := range t.allow {
		if match(glob, topic) {
			return ""
		}
	}
	return "is not on the allow-list; add it by --topic-allow if it is meant"
}

// expects reports whether the configuration by itself says that rows go to the topic: by the template, unless
// that is nothing but placeholders, or by an entry of the allow-list without wildcards. Wider globs are
// a permission, and may well cover other people's topics.
func (t *topics) expects(topic string) bool {
	if t.refuse(topic) != "" {
		return false
	}
	if pattern := t.pattern(); strings.Trim(pattern, "*") != "" && match(pattern, topic) {
		return true
	}
	return slices.Contains(t.allow, topic)
}

// match is [path.Match]; names and globs have been checked for what it treats
// specially.
func match(glob, name string) bool {
	ok, _ := path.Match(glob, name)
	return ok
}

// LegalTopic reports whether a topic can have the name, by Kafka's rule (org.apache.kafka.common.internals.Topic).
func LegalTopic(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxTopic && !strings.ContainsFunc(name, notInTopic)
}

func legalGlob(glob string) bool {
	return glob != "" && !strings.ContainsFunc(glob, func(c rune) bool { return c != '*' && c != '?' && notInTopic(c) })
}

func notInTopic(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
}
