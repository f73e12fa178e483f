package stack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// KafkaVersion is the release that StartKafka runs.
const KafkaVersion = "4.3.1"

const kafkaPOM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>walrelay</groupId><artifactId>e2e-kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + KafkaVersion + `</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
</dependencies></project>
`

const log4j2 = `status=ERROR
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c{1})%n%throwable{6}
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=INFO
`

// Serial collection and a small young compiler cache: a broker's threads must not crowd
// out the program under test on a small machine.
var jvmFlags = []string{"-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xss512k", "-XX:CICompilerCount=2", "-Djava.awt.headless=true"}

// fetch finds Java and Kafka.
func (k *Kafka) fetch(ctx context.Context) (err error) {
	if k.java, err = lookPath("java", "apt-get install openjdk-17-jre-headless"); err != nil {
		return err
	}
	if k.lib, err = cached(ctx, "kafka-"+KafkaVersion, fetchKafka); err != nil {
		return err
	}
	archive, err := k.classArchive(ctx)
	k.jvm = []string{"-XX:SharedArchiveFile=" + filepath.Join(archive, "kafka.jsa"), "-Xshare:auto"}
	return err
}

// classArchive makes the JVM's archive of the classes that a broker loads, by a broker's
// run at the first use: every later start takes 1.5 s of processor time less. A JVM that
// it does not fit ignores it.
func (k *Kafka) classArchive(ctx context.Context) (string, error) {
	java, _ := filepath.EvalSymlinks(k.java)
	name := fmt.Sprintf("kafka-%s-classes-%08x", KafkaVersion, crc32.ChecksumIEEE([]byte(java)))
	return cached(ctx, name, func(ctx context.Context, dir string) error {
		trial := &Kafka{opts: KafkaOptions{Brokers: 1}, id: clusterID(), java: k.java, lib: k.lib,
			jvm: []string{"-XX:ArchiveClassesAtExit=" + filepath.Join(dir, "kafka.jsa")}}
		err := trial.start(ctx)
		if err == nil {
			err = trial.CreateTopics(ctx, 1, nil, "trial")
		}
		if err == nil {
			err = trial.Broker(1).Stop(ctx)
		}
		return errors.Join(err, trial.Close())
	})
}

func fetchKafka(ctx context.Context, dir string) error {
	pom := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(pom, []byte(kafkaPOM), 0o644); err != nil {
		return err
	}
	return maven(ctx, dir, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
}

// clusterID is a random 22-character base64 uuid, as the storage tool wants it. It may
// not begin with a dash.
func clusterID() string {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// formatFromTemplate does what the storage tool does, without a second JVM for every
// broker: what the tool writes is kept in the cache, and only the ids are our own.
func (b *Broker) formatFromTemplate(ctx context.Context) error {
	template, err := cached(ctx, fmt.Sprintf("kafka-%s-formatted", KafkaVersion), func(ctx context.Context, dir string) error {
		config := filepath.Join(dir, "server.properties")
		lines := fmt.Sprintf("process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"+
			"listeners=CONTROLLER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2\ncontroller.listener.names=CONTROLLER\nlog.dirs=%s\n", dir)
		if err := os.WriteFile(config, []byte(lines), 0o644); err != nil {
			return err
		}
		return b.runStorageTool(ctx, config)
	})
	if err != nil {
		return err
	}
	checkpoint, err := os.ReadFile(filepath.Join(template, "bootstrap.checkpoint"))
	if err != nil {
		return err
	}
	meta := fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", b.kafka.id, b.ID, clusterID())
	if err := os.WriteFile(filepath.Join(b.DataDir(), "meta.properties"), []byte(meta), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.DataDir(), "bootstrap.checkpoint"), checkpoint, 0o600)
}
