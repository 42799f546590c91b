#!/usr/bin/perl
# Harvests an OAI-PMH repository with HTTP::OAI (libhttp-oai-perl), written for bridge's
# tests: the library asks and reads the answers.
#
#     oai_harvester.pl BASE_URL METADATA_PREFIX [FROM]
#
# prints a JSON object: {"date": the responseDate of the list, "identity": {...},
# "formats": [...], "sets": [...], "headers": [...], "records": [{"identifier": "...",
# "datestamp": "...", "deleted": 0, "sets": [...], "metadata": "..."}]}. The metadata is
# the element in exclusive canonical form; sets and formats have "" for what is missing.
use strict;
use warnings;
use Carp;
use HTTP::OAI;
use JSON::PP;
use XML::LibXML;

my ($base, $prefix, $from) = @ARGV;
my $harvester = HTTP::OAI::Harvester->new(baseURL => $base, resume => 0);
my %out = (headers => [], records => [], sets => [], formats => []);

sub check {
	my ($response, $what) = @_;
	return $response if $response->is_success;
	return undef if $response->code == 600 && grep { $_->code eq 'noRecordsMatch' || $_->code eq 'noSetHierarchy' } $response->errors;
	die "$what: ", $response->code, ' ', $response->message, "\n", map { $_->code . ': ' . ($_->message // '') . "\n" } $response->errors;
}

my $identify = check($harvester->Identify, 'Identify');
$out{identity} = { map { $_ => $identify->$_ } qw(repositoryName baseURL protocolVersion earliestDatestamp deletedRecord granularity) };

my $formats = check($harvester->ListMetadataFormats, 'ListMetadataFormats');
while (my $f = $formats->next) {
	push @{$out{formats}}, join ' ', $f->metadataPrefix, $f->metadataNamespace;
}

walk('ListSets', sub { push @{$out{sets}}, join ' ', $_[0]->setSpec, $_[0]->setName });
my @args = (metadataPrefix => $prefix, $from ? (from => $from) : ());
walk('ListIdentifiers', sub { push @{$out{headers}}, header($_[0]) }, @args);
$out{date} = walk('ListRecords', sub {
	my $rec = header($_[0]->header);
	if (my $m = $_[0]->metadata) {
		my ($element) = $m->dom->firstChild->getElementsByTagName('*'); # inside of metadata
		my $doc = XML::LibXML::Document->new('1.0', 'UTF-8');
		$doc->setDocumentElement($element);
		$rec->{metadata} = $doc->toStringEC14N(1);
		utf8::decode($rec->{metadata});
	}
	push @{$out{records}}, $rec;
}, @args);
print JSON::PP->new->utf8->canonical->encode(\%out);

# walk asks for a list to its end and returns the responseDate of the first answer. The
# library would go on by itself, and keep the items of the last answer alone.
sub walk {
	my ($verb, $each, @args) = @_;
	my $date;
	while (my $list = check($harvester->$verb(@args), $verb)) {
		$date //= $list->responseDate;
		while (my $item = $list->next) {
			$each->($item);
		}
		my $token = $list->resumptionToken;
		last unless $token && $token->resumptionToken;
		@args = (resumptionToken => $token->resumptionToken);
	}
	return $date;
}

sub header {
	my ($h) = @_;
	return { identifier => '' . $h->identifier, datestamp => '' . $h->datestamp, deleted => $h->is_deleted ? 1 : 0, sets => [ map { "$_" } $h->setSpec ] };
}
